"""A table: named columns of equal length, in memory or memory-mapped from a folder.

A folder holds a file of bytes for each array and `table.json`, which says what they are, how long,
and their checksums. It is written last: a folder without it does not count.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.data.encoded import Rows
from allformer.data.table.column import Array, Column, Piece, Texts, joined, piece
from allformer.errors import DataError

MANIFEST = "table.json"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name; a ragged one is `Rows`, one of strings is `Texts`, the others are arrays.

    >>> table = Table.from_columns({"ids": [[5, 6], [7]], "label": [0, 1]})
    >>> len(table), table["ids"][0].tolist(), table["label"].tolist()
    (2, [5, 6], [0, 1])
    >>> table.take([1, 0])["label"].tolist()
    [1, 0]
    """

    columns: Mapping[str, Column]
    folder: Path | None = None  # of a memory-mapped one

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Table:
        """In memory, from lists, arrays, strings or `Rows`."""
        return cls.from_pieces([{name: piece(name, values) for name, values in columns.items()}])

    @classmethod
    def from_pieces(cls, chunks: Sequence[Mapping[str, Piece | None]]) -> Table:
        """In memory, from what `encoded_chunk` makes of several chunks."""
        pieces: dict[str, list[Piece]] = {}
        for chunk in chunks:
            rows(chunk)
            for name, each in chunk.items():
                if each is not None:
                    pieces.setdefault(name, []).append(each)
        return cls({name: joined(name, each).column() for name, each in pieces.items()})

    @classmethod
    def open(cls, folder: str | Path) -> Table:
        """Memory-mapped, from a folder that `build_table` wrote: `Table.open("cache/train")`."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        found: dict[str, Column] = {}
        for name, arrays in manifest["columns"].items():
            mapped = {part: _mapped(folder, file) for part, file in arrays["files"].items()}
            if "lengths" not in mapped:
                found[name] = mapped["values"]
                continue
            whole = Rows(mapped["values"], mapped["lengths"], mapped["starts"])
            found[name] = Texts(whole) if arrays["kind"] == "text" else whole
        return cls(found, folder)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> Any:
        if name not in self.columns:
            raise DataError(f"no column {name!r} in the table; there are {', '.join(self.columns)}")
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __reduce__(self) -> Any:
        """Sent to another process by its folder: a memory map would be sent byte by byte."""
        return (Table.open, (self.folder,)) if self.folder else (Table, (dict(self.columns),))

    def take(self, index: npt.ArrayLike) -> Table:
        """Some rows in some order; ragged columns stay where they are, only offsets are new."""
        chosen = np.asarray(index)
        return Table(
            {
                name: column[chosen] if isinstance(column, np.ndarray) else column.take(chosen)
                for name, column in self.columns.items()
            }
        )


def rows(chunk: Mapping[str, Piece | None]) -> int:
    """How many rows a chunk has: its columns must agree."""
    counts = {name: 0 if each is None else len(each) for name, each in chunk.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"columns of one table must have equally many rows, and there are {said}")
    return next(iter(counts.values()), 0)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `table.json` says, if all files are there and as long as it says."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != VERSION:
            raise DataError(f"{folder} has form {manifest['version']}, not {VERSION}")
        for column in manifest["columns"].values():
            for file in column["files"].values():
                size = (folder / file["name"]).stat().st_size
                if size != file["bytes"]:
                    raise DataError(
                        f"{folder / file['name']} has {size} bytes, not {file['bytes']}"
                    )
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder / MANIFEST} is damaged ({error!r})") from error
    return dict(manifest)


def check_sums(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Read every byte and compare it with the checksum that was written down."""
    for column in manifest["columns"].values():
        for file in column["files"].values():
            if checksum(folder / file["name"]) != file["crc32"]:
                raise DataError(f"{folder / file['name']} is damaged: its checksum is another")


def checksum(path: Path) -> int:
    """CRC-32, a gigabyte or more a second: it is against disks, not against enemies."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _mapped(folder: Path, file: Mapping[str, Any]) -> Array:
    shape, dtype = tuple(file["shape"]), np.dtype(file["dtype"])
    if not file["bytes"]:
        return np.zeros(shape, dtype)  # nothing cannot be mapped
    return np.memmap(folder / file["name"], dtype, "r", shape=shape)
