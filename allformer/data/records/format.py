"""What a file format is: a name, its suffixes, and a function that reads one file as records.

    @format("jsonl", ".jsonl", ".ndjson")
    def read(path: Path, reading: Reading) -> Iterator[Item]: ...

A reader yields (number, record) for every record, the number being what a person would look for:
a line, or for files without lines the record itself. In place of a record that is broken it yields
the `DataError` that says so, and goes on: whether to stop is not its affair. It raises only where
nothing more can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allformer.errors import DataError, did_you_mean

Record = dict[str, Any]
Item = tuple[int, "Record | DataError"]


@dataclass(frozen=True)
class Options:
    """How files are to be read; each format looks at what concerns it."""

    unit: str = "line"  # of text: a record is a line, a document or a file
    begins: str = ""  # of text: a document begins with a line of its own that matches this
    header: bool | None = None  # of csv and tsv: whether the first line names the columns
    wanted: tuple[str, ...] = ()  # columns of the file that are asked for; none: all of them


@dataclass
class Reading:
    """What a reader is told, and the bytes that it has read so far, for a progress bar."""

    options: Options
    position: Callable[[], int] = field(default=lambda: 0)


Reader = Callable[[Path, Reading], Iterator[Item]]


@dataclass(frozen=True)
class Format:
    """A registered format; `counts` is the word for its numbers in messages."""

    name: str
    suffixes: tuple[str, ...]
    read: Reader
    sniff: Callable[[str], bool] | None  # whether a file that begins so is of this format
    counts: str
    identity: Callable[[Path], str] | None  # of what is no file: in place of its bytes


FORMATS: dict[str, Format] = {}
PACKED = (".gz", ".xz", ".bz2")  # unpacked on the way


def format(
    name: str,
    *suffixes: str,
    sniff: Callable[[str], bool] | None = None,
    counts: str = "line",
    identity: Callable[[Path], str] | None = None,
) -> Callable[[Reader], Reader]:
    """Register a reader: `@format("csv", ".csv")`."""

    def keep(read: Reader) -> Reader:
        FORMATS[name] = Format(name, suffixes, read, sniff, counts, identity)
        return read

    return keep


def named(name: str) -> Format:
    """The format called so: `named("csv")`."""
    if name not in FORMATS:
        raise DataError(
            f"format={name!r} is not known; {did_you_mean(name, FORMATS)}"
            f"there are auto, {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def suffix(path: Path) -> str:
    """The suffix that says what is inside: `suffix(Path("a.jsonl.gz"))` → ".jsonl"."""
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return Path(name).suffix
