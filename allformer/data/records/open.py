"""Find the files that a path means, and the format of each."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allformer.data.parallel import SPLITS, listing
from allformer.data.records.format import FORMATS, Options, named, suffix
from allformer.data.records.hub import PREFIX, is_saved
from allformer.data.records.lines import beginning
from allformer.data.records.records import Records, Source, Warn
from allformer.errors import DataError

Paths = str | Path | Iterable[str | Path]


def open_records(
    paths: Paths,
    format: str = "auto",
    *,
    columns: Mapping[str, str | int] | None = None,
    unit: str = "line",
    begins: str = "",
    header: bool | None = None,
    skip_bad: bool = False,
    warn: Warn = warnings.warn,
) -> Records:
    """Records of a file, a list of files, a pattern, a directory, or `hf:NAME[:CONFIG][:SPLIT]`.

    >>> open_records("corpus/*.txt.gz", unit="document")            # {"text": …}
    >>> open_records("a.jsonl", columns={"text": "body"})           # {"text": …}, and no more
    >>> open_records("sst2/train.tsv", columns={"text": 0, "label": 1})  # no header: by number
    >>> open_records("hf:glue:sst2:validation")

    `format="auto"` goes by the suffix of each file; `.gz`, `.xz` and `.bz2` are unpacked. `columns`
    says what we call each column and what the file calls it; without it records are as the file
    has them. `unit` and `begins` are of text: a record is a line, a document (blank lines between;
    or it begins with a title, a line between blank ones that the expression `begins` matches from
    end to end) or a file. `header` is of csv and tsv. Of a directory: its `train` files, or all
    files where no name says a split.

    A record that is broken is an error with file and line; with `skip_bad` it is left out, counted
    in `.skipped` and reported by `warn` after each pass.
    """
    wanted = {ours: str(theirs) for ours, theirs in (columns or {}).items()}
    options = Options(unit, begins, header, tuple(wanted.values()))
    sources = tuple(Source(path, _format_of(path, format)) for path in _found(paths, format))
    return Records(sources, wanted, options, skip_bad, warn=warn)


@dataclass(frozen=True)
class Splits:
    """The splits of a data set; those that are not there are `None`."""

    train: Records | None = None
    validation: Records | None = None
    test: Records | None = None


def open_splits(path: str | Path, format: str = "auto", **options: Any) -> Splits:
    """All splits that a directory holds: `open_splits("sst2", columns={"text": 0, "label": 1})`.

    Files `train.*` (or `train-…`, or a directory `train`), `val` / `valid` / `validation` / `dev`,
    and `test`. Options are those of `open_records`. A path that is no directory is all train.
    """
    folder = Path(path)
    found = _splits(folder, format) if folder.is_dir() else {}
    if not found:
        return Splits(train=open_records(path, format, **options))
    return Splits(**{name: open_records(each, format, **options) for name, each in found.items()})


def _found(paths: Paths, format: str) -> list[Path]:
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    found = [path for each in several for path in _expanded(each, format)]
    if not found:
        raise DataError("no file is named; give a file, a list, a pattern or a directory")
    return found


def _expanded(given: str | Path, format: str) -> list[Path]:
    path = Path(given)
    if str(given).startswith(PREFIX) or path.is_file():
        return [path]
    if path.is_dir():
        return _files(path, format)
    if glob.has_magic(str(given)):
        matches = sorted(Path(name) for name in glob.glob(str(given), recursive=True))
        files = [match for match in matches if match.is_file()]
        if files:
            return files
        raise DataError(f"no file matches {given}; check the pattern, in quotes on a command line")
    there = listing(path.parent) if path.parent.is_dir() else f"there is no directory {path.parent}"
    raise DataError(f"no such file: {given}; {there}")


def _files(folder: Path, format: str) -> list[Path]:
    """The training files of a directory."""
    if is_saved(folder):
        return [folder]
    splits = _splits(folder, format)
    if splits and "train" not in splits:
        raise DataError(f"{folder} has no training data, only {', '.join(splits)}; name the file")
    files = splits["train"] if splits else _readable(folder, format)
    if not files:
        raise DataError(
            f"{folder} has no file with a suffix that is known "
            f"({', '.join(_suffixes())}); {listing(folder)}. Name the files, or say format="
        )
    return files


def _splits(folder: Path, format: str) -> dict[str, list[Path]]:
    """`{"train": [corpus/train.txt], …}` of a directory whose files are named after splits."""
    found: dict[str, list[Path]] = {}
    for split, names in SPLITS.items():
        for name in names:
            inner = folder / name
            if inner.is_dir():
                files = [inner] if is_saved(inner) else _readable(inner, format)
            else:
                files = [path for path in _readable(folder, format) if _says(path) == name]
            if files:
                found[split] = files
                break
    return found


def _says(path: Path) -> str:
    """The first word of a name: "train" of `train-00001-of-00004.parquet`."""
    return path.name.lower().replace("_", ".").replace("-", ".").split(".")[0]


def _readable(folder: Path, format: str) -> list[Path]:
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
    known = _suffixes()
    return [path for path in files if format != "auto" or suffix(path) in known]


def _suffixes() -> list[str]:
    return sorted({end for format in FORMATS.values() for end in format.suffixes})


def _format_of(path: Path, format: str) -> str:
    if str(path).startswith(PREFIX) or path.is_dir():
        return "hf"
    if format != "auto":
        return named(format).name
    fitting = [each for each in FORMATS.values() if suffix(path) in each.suffixes]
    if not fitting:
        raise DataError(
            f"{path}: its suffix does not say what is in it; say format= "
            f"({', '.join(FORMATS)}), or use one of {', '.join(_suffixes())}"
        )
    for each in fitting:
        if each.sniff is None or each.sniff(beginning(path)):
            return each.name
    return fitting[-1].name
