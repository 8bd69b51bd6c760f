"""Plain text: a record is a line, a document (blank lines between), or the whole file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
    new = _border(reading.options.begins)
    for number, line in numbered_lines(path, reading):
        if isinstance(line, DataError):
            fault = fault or (number, line)
            continue
        ends, belongs = new(line)
        if ends:
            if fault:
                yield fault
            elif lines:
                yield first, _document(lines)
            lines, fault = [], None
        if belongs and (lines or line.strip()):
            first = first if lines else number
            lines.append(line)
    if fault:
        yield fault
    elif lines:
        yield first, _document(lines)


def _document(lines: list[str]) -> dict[str, str]:
    while lines and not lines[-1].strip():
        lines.pop()
    return {"text": "\n".join(lines)}


def _border(begins: str) -> Callable[[str], tuple[bool, bool]]:
    """Of a line: whether a document ends before it, and whether it belongs to one itself."""
    if not begins:
        return lambda line: (True, False) if not line.strip() else (False, True)
    try:
        pattern = re.compile(begins)
    except re.error as error:
        raise DataError(
            f"begins={begins!r} is not a regular expression ({error}); give one that a document's "
            "first line matches from its start to its end"
        ) from error
    return lambda line: (pattern.fullmatch(line) is not None, True)


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
