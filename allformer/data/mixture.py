"""Several tables as one, in declared proportions; small ones repeat.

>>> mixed = Mixture([english, chinese], weights=[3, 1]).epoch(seed=0, epoch=0)
>>> len(mixed), mixed.take([0, 1, 2])["ids"][0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.data.encoded import Ids, Lengths, Rows
from allformer.data.table import Table, Texts
from allformer.errors import DataError

Indices = npt.NDArray[np.int64]


def shares(
    sizes: Sequence[int], weights: Sequence[float] | None = None, temperature: float = 1.0
) -> npt.NDArray[np.float64]:
    """The part of each set, summing to 1: `shares([900, 100], temperature=2)` → [0.75, 0.25].

    In proportion to the weights, by themselves the sizes, each to the power of 1 / temperature: 1
    takes them as they are, and the higher the more alike all parts become, so that small languages
    are heard.
    """
    parts = np.asarray(sizes if weights is None else weights, np.float64)
    if len(parts) != len(sizes):
        raise DataError(f"weights={weights} must be {len(sizes)} numbers, one for each set")
    if not len(parts) or not np.isfinite(parts).all() or parts.min() <= 0:
        raise DataError(f"weights={parts.tolist()} must be positive; leave out a set of weight 0")
    if not temperature > 0:
        raise DataError(f"temperature={temperature} must be more than 0; 1 keeps the weights")
    parts = (parts / parts.max()) ** (1 / temperature)
    return np.asarray(parts / parts.sum())


def counts(parts: npt.NDArray[np.float64], total: int) -> Indices:
    """`total` rows divided up: as `parts` say, to the nearest row (largest remainder)."""
    exact = parts * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole


@dataclass(frozen=True)
class Mixture:
    """Tables and how much of each: `Mixture([a, b], weights=[3, 1])`.

    An epoch has `total` rows, by itself as many as all tables together. Its proportions are exact
    to a row. Each table is walked through in a random order of its own, epoch after epoch where
    the last one stopped: a small one comes round several times, a large one is used up before any
    row of it is seen again. All of it is decided by (seed, epoch) alone.
    """

    tables: Sequence[Table]
    weights: Sequence[float] | None = None
    temperature: float = 1.0
    total: int | None = None

    def __post_init__(self) -> None:
        sizes = [len(table) for table in self.tables]
        if not sizes or min(sizes) < 1 or (self.total is not None and self.total < 1):
            raise DataError(f"a mixture of {sizes} rows, total={self.total}: none may be empty")
        shares(sizes, self.weights, self.temperature)
        for table in self.tables[1:]:
            here, first = table.columns, self.tables[0].columns
            if set(here) != set(first):
                raise DataError(
                    f"the columns {', '.join(here)} are not {', '.join(first)}; tables of a "
                    "mixture have the same columns"
                )

    def epoch(self, *, seed: int, epoch: int) -> Mixed:
        """The rows of an epoch, in their order."""
        sizes = [len(table) for table in self.tables]
        total = self.total or sum(sizes)
        parts = counts(shares(sizes, self.weights, self.temperature), total)
        rows = [
            _walk(size, int(count), epoch * int(count), [seed, number])
            for number, (size, count) in enumerate(zip(sizes, parts, strict=True))
        ]
        table = np.repeat(np.arange(len(sizes)), parts)
        order = np.random.default_rng([seed, epoch, len(sizes)]).permutation(total)
        return Mixed(tuple(self.tables), table[order], np.concatenate(rows)[order])


def _walk(size: int, count: int, start: int, seed: list[int]) -> Indices:
    """Rows number `start` to `start + count` of an endless walk: a new permutation each time."""
    found, end = [], start + count
    while start < end:
        around, place = divmod(start, size)
        order = np.random.default_rng([*seed, around]).permutation(size)
        found.append(order[place : place + end - start])
        start += len(found[-1])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Mixed:
    """One epoch of a mixture. It is read like a table; `take` gives a table of the rows alone."""

    tables: tuple[Table, ...]
    table: Indices  # of each row: which table it is of
    row: Indices  # and which row there

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, name: str) -> Any:
        columns = [table[name] for table in self.tables]
        if isinstance(columns[0], np.ndarray):
            found = np.empty((len(self), *columns[0].shape[1:]), np.result_type(*columns))
            for number, column in enumerate(columns):
                here = self.table == number
                found[here] = column[self.row[here]]
            return found
        return MixedRows(tuple(columns), self.table, self.row)

    def __contains__(self, name: object) -> bool:
        return name in self.tables[0]

    def take(self, index: npt.ArrayLike) -> Table:
        """Some rows as a table in memory: `mixed.take(batch)`."""
        chosen = np.asarray(index)
        table, row = self.table[chosen], self.row[chosen]
        columns: dict[str, Any] = {}
        for name in self.tables[0].columns:
            column = Mixed(self.tables, table, row)[name]
            columns[name] = column.rows() if isinstance(column, MixedRows) else column
        return Table(columns)


@dataclass(frozen=True, eq=False)
class MixedRows:
    """A ragged column of an epoch: lengths at once, rows when they are asked for."""

    columns: tuple[Any, ...]  # Rows, or Texts
    table: Indices
    row: Indices

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, i: int) -> Any:
        return self.columns[self.table[i]][self.row[i]]

    @property
    def lengths(self) -> Lengths:
        """Ids (bytes, of texts) in each row."""
        found = np.empty(len(self), np.int64)
        for number, column in enumerate(self.columns):
            here = self.table == number
            found[here] = _inner(column).lengths[self.row[here]]
        return found

    def rows(self) -> Rows | Texts:
        """All of them, copied into memory: for a batch."""
        parts: list[Ids] = []
        starts, begin = np.empty(len(self), np.int64), 0
        for number, column in enumerate(self.columns):
            here = self.table == number
            chosen = _inner(column).take(self.row[here])
            parts.append(chosen.flat())
            starts[here] = begin + np.cumsum(chosen.lengths) - chosen.lengths
            begin += len(parts[-1])
        rows = Rows(np.concatenate(parts), self.lengths, starts)
        return Texts(rows) if isinstance(self.columns[0], Texts) else rows


def _inner(column: Rows | Texts) -> Rows:
    return column.rows if isinstance(column, Texts) else column
