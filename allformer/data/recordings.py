"""`open_recordings(path)`: sound files with what is said in them, by split.

mine/train.tsv      clips/1.wav <tab> A dog runs on the beach.
mine/val.tsv        path <tab> text            a first line may name the columns
digits/             3_theo_17.wav              Free Spoken Digit Dataset: digit, speaker, number

Of the digits the recordings 0 … 4 of each speaker are the test split, as is usual.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from allformer.data.records.format import Options, Reading
from allformer.data.records.lines import numbered_lines
from allformer.errors import DataError

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
          "test": "test"}  # fmt: skip
SOUND = ("path", "file", "audio", "filename", "file_name", "wav")
TEXT = ("text", "sentence", "transcript", "transcription", "raw_transcription")
SPEAKER = ("speaker", "client_id", "speaker_id")
FOLDERS = ("", "clips", "wav", "audio")  # beside a table
TABLES = (".tsv", ".tab")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DIGIT = re.compile(r"(?P<digit>\d)_(?P<speaker>[^_]+)_(?P<number>\d+)\.wav")
_TEST = 5  # recordings of each digit and speaker


@dataclass(frozen=True)
class Recording:
    """A file, what is said in it, and by whom, if that is known."""

    path: Path
    text: str
    speaker: str = ""


Recordings = dict[str, list[Recording]]  # of `train`, `val` and `test` those that are there


def open_recordings(path: str | Path) -> Recordings:
    """Splits by name.

    >>> {name: len(part) for name, part in open_recordings("free-spoken-digit-dataset").items()}
    {'train': 2700, 'test': 300}
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"{path} is not there; check data.path, or give --data DIR")
    found = _tables(path) or (_digits(path) if path.is_dir() else {})
    if not found:
        raise DataError(
            f"{path} has no recordings that are known: give a table train.tsv, a sound file and "
            f"its text on a line, or a folder of digits, 3_theo_17.wav"
        )
    return found


def _digits(path: Path) -> Recordings:
    folder = path / "recordings" if (path / "recordings").is_dir() else path
    found: Recordings = {"train": [], "test": []}
    for file in sorted(folder.iterdir()):
        if match := _DIGIT.fullmatch(file.name):
            split = "test" if int(match["number"]) < _TEST else "train"
            text = DIGITS[int(match["digit"])]
            found[split].append(Recording(file, text, match["speaker"]))
    return {name: part for name, part in found.items() if part}


def _tables(path: Path) -> Recordings:
    if path.is_file():
        return {"train": _read(path)} if path.suffix.lower() in TABLES else {}
    files = sorted(x for x in path.iterdir() if x.suffix.lower() in TABLES and x.is_file())
    named = {SPLITS[x.stem.lower()]: x for x in files if x.stem.lower() in SPLITS}
    if len(files) == 1 and not named:
        named = {"train": files[0]}
    return {name: _read(file) for name, file in named.items()}


def _read(table: Path) -> list[Recording]:
    found: list[Recording] = []
    columns: dict[str, int] | None = None
    for number, line in numbered_lines(table, Reading(Options())):
        if isinstance(line, DataError):
            raise line
        if not line.strip():
            continue
        cells = line.split("\t")
        if columns is None:
            columns = _columns(cells)
            if columns:
                continue
            columns = {"sound": 0, "text": 1}
        where = f"{table}, line {number}"
        if len(cells) <= max(columns.values()):
            raise DataError(f"{where}: there is no tab; a line has a sound file and its text")
        told = {name: cells[place].strip() for name, place in columns.items()}
        path = _file(table.parent, told["sound"], where)
        found.append(Recording(path, told["text"], told.get("speaker", "")))
    if not found:
        raise DataError(f"{table} names no recording; a line has a sound file and its text")
    return found


def _columns(cells: list[str]) -> dict[str, int]:
    """Where file, text and speaker stand, if this line is a header."""
    names = [cell.strip().lower() for cell in cells]
    known = {"sound": SOUND, "text": TEXT, "speaker": SPEAKER}
    places = {
        ours: names.index(name)
        for ours, theirs in known.items()
        for name in theirs[::-1]
        if name in names
    }
    return places if {"sound", "text"} <= places.keys() else {}


def _file(folder: Path, name: str, where: str) -> Path:
    for inner in FOLDERS if name else ():
        if (path := folder / inner / name).is_file():
            return path
    raise DataError(f"{where}: there is no sound file {name!r} in {folder}; add it")
