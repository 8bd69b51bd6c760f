"""Arithmetic on rows of different lengths that lie end to end: no loop over rows.

Legend: R rows, N entries of all of them.
"""

from __future__ import annotations

import numpy as np

from allformer.data.encoded import Rows
from allformer.train.batch import Array


def each(lengths: Array) -> tuple[Array, Array]:
    """Of every entry its row and its number there: `each([2, 1])` → [0, 0, 1], [0, 1, 0]."""
    lengths = np.asarray(lengths, np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def least(chance: Array, lengths: Array, wanted: Array) -> Array:
    """N: whether an entry is among the `wanted` smallest of its row."""
    row, place = each(lengths)
    order = np.lexsort((chance, row))  # the rows stay in their order
    found = np.zeros(len(row), bool)
    found[order] = place < np.asarray(wanted)[row]
    return found


def gather(rows: Rows) -> Array:
    """The ids of all rows, end to end, as int64."""
    row, place = each(rows.lengths)
    return np.asarray(rows.ids[rows.starts[row] + place], np.int64)


def flat_rows(ids: Array, lengths: Array) -> Rows:
    """Rows that lie end to end in `ids`."""
    lengths = np.asarray(lengths, np.int64)
    return Rows(ids, lengths, np.cumsum(lengths) - lengths)


def surrounded(rows: Rows, before: tuple[int, ...], after: tuple[int, ...]) -> Rows:
    """The rows with ids put before and after each."""
    lengths = rows.lengths + len(before) + len(after)
    found = flat_rows(np.empty(int(lengths.sum()), np.int64), lengths)
    row, place = each(rows.lengths)
    found.ids[found.starts[row] + len(before) + place] = rows.ids[rows.starts[row] + place]
    for i, token in enumerate(before):
        found.ids[found.starts + i] = token
    ends = found.starts + lengths
    for i, token in enumerate(reversed(after), 1):
        found.ids[ends - i] = token
    return found
