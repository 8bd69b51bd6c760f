"""Write a table chunk by chunk into a folder; whole, or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from allformer.data.table.column import Array, Piece, same_kind, wider
from allformer.data.table.table import MANIFEST, VERSION, checksum, rows
from allformer.disk import sync, sync_folder
from allformer.errors import DataError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_BLOCK = 1 << 22  # numbers that are widened at a time


class Writer:
    """Takes chunks; `finish` makes them a table: `Writer(folder).add(chunk)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns: dict[str, _Files] = {}
        self.rows = 0

    def add(self, chunk: Mapping[str, Piece | None]) -> None:
        """Append the rows of a chunk to every column."""
        count = rows(chunk)
        if not count:
            return
        if self.columns and set(chunk) != set(self.columns):
            raise DataError(
                f"encode gave the columns {', '.join(chunk)} after {', '.join(self.columns)}; it "
                "must give the same ones for every chunk"
            )
        for name, piece in chunk.items():
            if piece is not None:
                if name not in self.columns:
                    self.columns[name] = _Files(self.folder, name, piece)
                self.columns[name].add(piece)
        self.rows += count

    def finish(self, key: str) -> None:
        """Everything on disk, `table.json` last."""
        columns = {name: files.finish() for name, files in self.columns.items()}
        manifest = {"version": VERSION, "key": key, "rows": self.rows, "columns": columns}
        with (self.folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            sync(file)
        sync_folder(self.folder)

    def close(self) -> None:
        """Let go of the files, finished or not."""
        for files in self.columns.values():
            for file in files.opened.values():
                file.close()


class _Files:
    """The files of one column: values, and of a ragged one lengths and starts."""

    def __init__(self, folder: Path, name: str, first: Piece) -> None:
        if not _NAME.fullmatch(name):
            raise DataError(f"column {name!r}: a name is a letter, then letters, digits, - and _")
        self.folder, self.name, self.first = folder, name, first
        self.dtype = first.values.dtype
        self.count = self.length = 0
        parts = ["values"] if first.lengths is None else ["values", "lengths", "starts"]
        self.opened: dict[str, BinaryIO] = {part: self._path(part).open("wb") for part in parts}

    def add(self, piece: Piece) -> None:
        same_kind(self.name, self.first, piece)
        dtype = wider(self.dtype, piece.values.dtype)
        if dtype != self.dtype:
            self._widen(dtype)
        self.opened["values"].write(_bytes(piece.values.astype(dtype, copy=False)))
        if piece.lengths is not None:
            starts = self.length + np.cumsum(piece.lengths) - piece.lengths
            self.opened["lengths"].write(_bytes(piece.lengths))
            self.opened["starts"].write(_bytes(starts))
        self.count += len(piece)
        self.length += len(piece.values)

    def finish(self) -> dict[str, Any]:
        shape = [self.length, *self.first.values.shape[1:]]
        files = {"values": self._entry("values", shape, self.dtype)}
        if self.first.lengths is not None:
            for part in ("lengths", "starts"):
                files[part] = self._entry(part, [self.count], np.dtype(np.int64))
        return {"kind": self.first.kind, "files": files}

    def _entry(self, part: str, shape: list[int], dtype: np.dtype[Any]) -> dict[str, Any]:
        file, path = self.opened[part], self._path(part)
        sync(file)
        file.close()
        return {
            "name": path.name, "dtype": dtype.str, "shape": shape,
            "bytes": path.stat().st_size, "crc32": checksum(path),
        }  # fmt: skip

    def _path(self, part: str) -> Path:
        return self.folder / f"{self.name}.{part}"

    def _widen(self, dtype: np.dtype[Any]) -> None:
        """An id that does not fit: write what is there once more, with wider numbers."""
        path = self._path("values")
        self.opened["values"].close()
        wider = path.with_suffix(".wider")
        with path.open("rb") as old, wider.open("wb") as new:
            while block := old.read(_BLOCK * self.dtype.itemsize):
                new.write(_bytes(np.frombuffer(block, self.dtype).astype(dtype)))
        os.replace(wider, path)
        self.opened["values"] = path.open("ab")
        self.dtype = dtype


def _bytes(values: Array) -> memoryview:
    return np.ascontiguousarray(values).data.cast("B") if values.size else memoryview(b"")
