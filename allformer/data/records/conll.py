"""CoNLL columns: a token a line with its tags, blank lines between sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from allformer.data.records.format import Item, Reading, Record, format
from allformer.data.records.lines import numbered_lines
from allformer.errors import DataError

_BORDER = "-DOCSTART-"  # CoNLL-2003's line between documents


@format("conll", ".conll", ".iob", ".iob2", ".bio")
def read(path: Path, reading: Reading) -> Iterator[Item]:
    """Sentences `{"tokens": […], "tags": […]}`: the first and the last column.

    Every column is there by its number too ("0", "1", …). Columns are set apart by tabs, or by
    spaces in a file without tabs. A sentence with a bad line is bad as a whole.
    """
    first = 0
    rows: list[list[str]] = []
    fault: tuple[int, DataError] | None = None
    width, tabs = 0, None
    for number, line in numbered_lines(path, reading):
        if not isinstance(line, DataError) and (not line.strip() or line.startswith(_BORDER)):
            if fault or rows:
                yield fault or (first, _sentence(rows))
            rows, fault = [], None
            continue
        if isinstance(line, DataError):
            fault = fault or (number, line)
            continue
        tabs = "\t" in line if tabs is None else tabs
        cells = line.rstrip().split("\t") if tabs else line.split()
        width = width or len(cells)
        fault = fault or _wrong(path, number, cells, width)
        first = first if rows else number
        rows.append(cells)
    if fault or rows:
        yield fault or (first, _sentence(rows))


def _wrong(path: Path, number: int, cells: list[str], width: int) -> tuple[int, DataError] | None:
    place = f"{path}, line {number}"
    if width < 2:
        return number, DataError(
            f"{place}: one column where a token and its tag are needed; set them apart by a tab, "
            "and sentences by blank lines"
        )
    if len(cells) != width:
        return number, DataError(
            f"{place}: {len(cells)} column(s) where the lines before have {width}; mend the line"
        )
    if not all(cell.strip() for cell in cells):
        return number, DataError(f"{place}: an empty column; each token has its tag")
    return None


def _sentence(rows: list[list[str]]) -> Record:
    columns = [list(column) for column in zip(*rows, strict=True)]
    numbered = {str(i): column for i, column in enumerate(columns)}
    return {"tokens": columns[0], "tags": columns[-1], **numbered}
