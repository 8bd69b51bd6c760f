"""Tables as text. CSV has quotes as RFC 4180 says; in TSV a quote is a character like any other."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from allformer.data.records.format import Item, Reading, format
from allformer.data.records.lines import numbered_lines
from allformer.errors import DataError


@format("csv", ".csv")
def read_csv(path: Path, reading: Reading) -> Iterator[Item]:
    """Rows by the names of the header, or by number; see `named_rows`."""
    return named_rows(path, reading, _csv_rows(path, reading))


@format("tsv", ".tsv", ".tab")
def read_tsv(path: Path, reading: Reading) -> Iterator[Item]:
    """The same with tabs; a cell holds no tab and no line end, and quotes mean nothing."""
    return named_rows(path, reading, _tsv_rows(path, reading))


Row = tuple[int, list[str] | DataError]


def named_rows(path: Path, reading: Reading, rows: Iterator[Row]) -> Iterator[Item]:
    """Rows as records. Without a header the columns are called "0", "1", …

    Whether there is one is what `header` says; by itself there is, unless all columns that are
    asked for are numbers. With a header, columns can be asked for by number all the same.
    """
    wanted, header = reading.options.wanted, reading.options.header
    by_number = bool(wanted) and all(name.isdecimal() for name in wanted)
    if header is None:
        header = not by_number
    names: list[str] = []
    for number, row in rows:
        if isinstance(row, DataError):
            if header and not names:
                raise row  # without the names nothing can be read
            yield number, row
        elif not names and header:
            names = _header(path, number, row)
            if by_number and not set(wanted) & set(names):
                names = [str(i) for i in range(len(row))]
        else:
            names = names or [str(i) for i in range(len(row))]
            yield number, _record(path, number, names, row)
    if not names:
        raise DataError(f"{path} has no row in it; leave it out, or write it again")


def _header(path: Path, number: int, row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{path}, line {number}: the header names {twice[0]!r} twice; if this line is no "
            "header, say header=false and give columns by number"
        )
    return names


def _record(
    path: Path, number: int, names: list[str], row: list[str]
) -> dict[str, str] | DataError:
    if len(row) == len(names):
        return dict(zip(names, row, strict=True))
    return DataError(
        f"{path}, line {number}: {len(row)} field(s) where {len(names)} are needed "
        f"({', '.join(names[:8])}{', …' if len(names) > 8 else ''}); mend the line"
    )


def _tsv_rows(path: Path, reading: Reading) -> Iterator[Row]:
    for number, line in numbered_lines(path, reading):
        if isinstance(line, DataError):
            yield number, line
        elif line:  # tabs alone are a row of empty cells
            yield number, line.split("\t")


class _Lines:
    """The lines for Python's reader, which wants their ends; a bad one is kept for its row."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.lines = numbered_lines(path, reading)
        self.fault: DataError | None = None
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in self.lines:
            self.number = number
            if isinstance(line, DataError):
                self.fault = self.fault or line
                yield "\n"
            else:
                yield line + "\n"


def _way_out(error: csv.Error) -> str:
    if "field limit" in str(error):  # 131,072 characters
        return "a quote that is never closed? If a cell is meant to be so long, use JSONL"
    return 'a quote inside a quoted cell is written twice (""), and each that is opened is closed'


def _csv_rows(path: Path, reading: Reading) -> Iterator[Row]:
    lines = _Lines(path, reading)
    rows = csv.reader(iter(lines), strict=True)
    while True:
        first = lines.number + 1  # a quoted cell may reach over several lines
        row: list[str] | DataError | None
        try:
            row = next(rows, None)
        except csv.Error as error:
            row = DataError(f"{path}, line {first}: {error}; {_way_out(error)}")
        if lines.fault:
            row, lines.fault = lines.fault, None
        if row is None:
            return
        if row:
            yield first, row
