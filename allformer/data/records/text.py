"""Plain text: a record is a line, a document (blank lines between), or the whole file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from allformer.data.records.format import Item, Reading, format
from allformer.data.records.lines import checked, numbered_lines, opened
from allformer.errors import DataError


@format("text", ".txt", ".text")
def read(path: Path, reading: Reading) -> Iterator[Item]:
    """Records `{"text": …}`. Blank lines are between records, never records."""
    unit, begins = reading.options.unit, reading.options.begins
    if unit not in _UNITS:
        raise DataError(f"unit={unit!r} is not known; there are {', '.join(_UNITS)}")
    if begins and unit != "document":
        raise DataError(f"begins={begins!r} is of documents, and unit={unit!r}; say unit=document")
    return _UNITS[unit](path, reading)


def _by_line(path: Path, reading: Reading) -> Iterator[Item]:
    for number, line in numbered_lines(path, reading):
        if isinstance(line, DataError):
            yield number, line
        elif not line.isspace() and line:
            yield number, {"text": line}


def _by_document(path: Path, reading: Reading) -> Iterator[Item]:
    """A document whose line is bad is bad as a whole, and has the number of that line."""
    first = 0
    lines: list[str] = []
    fault: tuple[int, DataError] | None = None
    for number, line, ends in _bordered(path, reading):
        if ends:
            if fault or lines:
                yield fault or (first, _document(lines))
            lines, fault = [], None
        if isinstance(line, DataError):
            fault = fault or (number, line)
        elif lines or line.strip():
            first = first if lines else number
            lines.append(line)
    if fault or lines:
        yield fault or (first, _document(lines))


def _document(lines: list[str]) -> dict[str, str]:
    while not lines[-1].strip():
        lines.pop()
    return {"text": "\n".join(lines)}


def _bordered(path: Path, reading: Reading) -> Iterator[tuple[int, str | DataError, bool]]:
    """Lines, and of each whether a document ends before it."""
    begins = _title(reading.options.begins)
    before, waiting = True, None  # whether a blank line came last; a line that may be a title
    for number, line in numbered_lines(path, reading):
        blank = not isinstance(line, DataError) and not line.strip()
        if waiting:
            yield *waiting, blank
            waiting = None
        if begins is None:
            yield number, line, blank
        elif before and not isinstance(line, DataError) and begins.fullmatch(line):
            waiting = number, line  # until we know that it stands alone
        else:
            yield number, line, False
        before = blank
    if waiting:
        yield *waiting, True


def _title(begins: str) -> re.Pattern[str] | None:
    try:
        return re.compile(begins) if begins else None
    except re.error as error:
        raise DataError(
            f"begins={begins!r} is not a regular expression ({error}); give one that a document's "
            "first line matches from its start to its end"
        ) from error


def _by_file(path: Path, reading: Reading) -> Iterator[Item]:
    """Byte for byte, line ends included: what a character model reads. In memory as a whole."""
    with opened(path, reading) as file:
        parts: list[str] = []
        offset = 0
        for number, line in enumerate(file, 1):
            text = checked(path, number, line, offset)
            if isinstance(text, DataError):
                yield number, text
                return
            offset += len(line)
            ending = line[len(line.rstrip(b"\r\n")) :].decode()
            parts.append(text + ending)
    if not parts:
        raise DataError(f"{path} is empty; leave it out, or write it again")
    yield 1, {"text": "".join(parts)}


_UNITS = {"line": _by_line, "document": _by_document, "file": _by_file}
