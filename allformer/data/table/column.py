"""A column of a table: plain numbers, rows of different lengths, or texts.

What an encoder gives (lists, arrays, strings) becomes a `Piece`: arrays that can be written to a
file, or sent from one process to another, without a Python object for each number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.data.encoded import Lengths, Rows
from allformer.errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Texts:
    """Strings of a table: `table["question"][3]`."""

    rows: Rows  # of UTF-8 bytes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> str:
        return self.rows[i].tobytes().decode("utf-8")

    def take(self, index: npt.ArrayLike) -> Texts:
        """Some of them in some order: `texts.take([5, 0])`."""
        return Texts(self.rows.take(index))


Column = Array | Rows | Texts


@dataclass(frozen=True)
class Piece:
    """Some rows of a column as arrays; `lengths` where they are ragged."""

    kind: str  # "plain", "rows" or "text"
    values: Array
    lengths: Lengths | None = None

    def __len__(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    def column(self) -> Column:
        """Whole, in memory."""
        if self.lengths is None:
            return self.values
        rows = Rows(self.values, self.lengths, np.cumsum(self.lengths) - self.lengths)
        return Texts(rows) if self.kind == "text" else rows


def piece(name: str, values: Any) -> Piece | None:
    """What an encoder gave for a column; `None` for an empty list, which could be of any kind."""
    if isinstance(values, Texts):
        return Piece("text", values.rows.flat(), np.array(values.rows.lengths))
    if isinstance(values, Rows):
        return Piece("rows", narrow(name, values.flat()), np.array(values.lengths))
    if isinstance(values, np.ndarray):
        return Piece("plain", _plain(name, values)) if len(values) else None
    values = list(values)
    if not values:
        return None
    if all(isinstance(value, str) for value in values):
        packed = [value.encode("utf-8") for value in values]
        return Piece("text", np.frombuffer(b"".join(packed), np.uint8), _lengths(packed))
    if isinstance(values[0], list | tuple | np.ndarray):
        return Piece("rows", narrow(name, _flat(name, values)), _lengths(values))
    return Piece("plain", _plain(name, _array(name, values)))


def joined(name: str, pieces: Sequence[Piece]) -> Piece:
    """Pieces of one column end to end: `joined("ids", pieces)`."""
    for each in pieces:
        same_kind(name, pieces[0], each)
    values = np.concatenate([each.values for each in pieces])
    if pieces[0].kind != "plain" or values.ndim == 2:
        values = narrow(name, values) if pieces[0].kind != "text" else values
    lengths = [each.lengths for each in pieces if each.lengths is not None]
    return Piece(pieces[0].kind, values, np.concatenate(lengths) if lengths else None)


def same_kind(name: str, first: Piece, other: Piece) -> None:
    """Refuse a column that changes its kind or its width half-way."""
    here, there = (
        f"{each.kind} of shape {each.values.shape[1:]}" if each.values.ndim > 1 else each.kind
        for each in (first, other)
    )
    floats = first.values.dtype.kind == "f", other.values.dtype.kind == "f"
    if here != there or (floats[0] != floats[1] and len(first.values) and len(other.values)):
        raise DataError(
            f"column {name!r} is {here} ({first.values.dtype}) at first and {there} "
            f"({other.values.dtype}) later; encode must give one kind throughout"
        )


def narrow(name: str, values: Array) -> Array:
    """Integers as uint16 where they fit, as ids of most vocabularies do; else int32 or int64."""
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    return values.astype(fitting(values), copy=False)


def fitting(values: Array) -> np.dtype[Any]:
    """The narrowest of uint16, int32 and int64 that holds them all."""
    if not len(values) or values.dtype in (np.uint16, np.uint8, np.bool_):
        return np.dtype(np.uint16)
    low, high = int(values.min()), int(values.max())
    if low >= 0 and high < 1 << 16:
        return np.dtype(np.uint16)
    return np.dtype(np.int32 if low >= -(1 << 31) and high < 1 << 31 else np.int64)


def wider(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """What holds both: `wider(np.dtype(np.uint16), np.dtype(np.int32))` → int32."""
    if one == other or one not in _WIDTHS:
        return one
    return max(one, other, key=_WIDTHS.index) if other in _WIDTHS else other


_WIDTHS = [np.dtype(kind) for kind in (np.uint16, np.int32, np.int64)]


def _plain(name: str, values: Array) -> Array:
    if values.ndim > 2 or values.dtype.kind not in "biuf":
        raise _unfit(name, f"an array of {values.dtype} and shape {values.shape}")
    if values.ndim == 2 or values.dtype.kind == "f":
        return narrow(name, values)
    return values.astype(np.int64)


def _flat(name: str, values: Sequence[Any]) -> Array:
    if isinstance(values[0], np.ndarray):
        flat: Array = np.concatenate(values)
    else:
        flat = _array(name, list(chain.from_iterable(values)))
    if flat.ndim != 1 or flat.dtype.kind not in "biuf":
        raise _unfit(name, f"rows of {flat.dtype} in {flat.ndim} dimensions")
    return flat


def _array(name: str, values: list[Any]) -> Array:
    if not values:
        return np.zeros(0, np.uint16)
    try:
        return np.array(values)
    except (ValueError, OverflowError) as error:  # lists in lists of different lengths
        raise _unfit(name, f"values such as {str(values[0])[:60]}") from error


def _lengths(values: Sequence[Any]) -> Lengths:
    return np.fromiter(map(len, values), np.int64, len(values))


def _unfit(name: str, what: str) -> DataError:
    return DataError(
        f"column {name!r} holds {what}; a column is numbers, strings, lists of numbers, or an "
        "array of at most two dimensions"
    )
