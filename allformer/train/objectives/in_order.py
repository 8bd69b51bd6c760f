"""Texts in order: row r of every batch goes on where row r of the one before has ended.

Legend: R rows, L tokens of a segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.data.encoded import Lengths, Rows
from allformer.errors import DataError
from allformer.train.batch import Array
from allformer.train.objectives.words import Marks


class SegmentBatch(NamedTuple):
    """A segment of each row: what is read, what has to be said, and which rows begin anew."""

    ids: Tensor  # R L
    layout: Grid  # with a mask where not everywhere is text
    labels: Tensor  # R L; −100 where nothing is said
    fresh: Tensor  # R: nothing is remembered
    tokens: int  # labels that count


@dataclass(frozen=True, eq=False)
class InOrder:
    """Segments by batch and row. Of each: its first place among all that is said (documents end to
    end, each with its end mark), how many tokens it says, and whether it begins a text.

    A token that is said is read at the next place; before the first of a text stands `begin`.
    """

    documents: Rows
    ends: Lengths  # where each document ends among all that is said
    marks: Marks
    length: int
    first: Array  # K R
    said: Array  # K R
    fresh: Array  # K R
    alone: bool  # each document by itself
    size: int = 0  # bytes of the text, where they are known

    @classmethod
    def of_stream(
        cls,
        documents: Rows,
        length: int,
        rows: int,
        marks: Marks,
        *,
        seed: int | None = None,
        epoch: int = 0,
        size: int = 0,
        whole: bool = False,
    ) -> InOrder:
        """All documents end to end in `rows` equal parts. With a seed, from an offset on; `whole`:
        every token but the first is said, so that the last segments are shorter."""
        ends = np.cumsum(documents.lengths + 1)
        total = int(ends[-1]) if len(ends) else 0
        skip = 1  # what stands first is not said
        if seed is not None:
            room = max(1, min(length, total - 1 - rows * length))
            skip += int(np.random.default_rng([seed, epoch]).integers(room))
        left = total - skip
        rows = max(1, min(rows, left if whole else left // length))
        # Equal parts, but for a token more or less where all must be said.
        borders = np.arange(rows + 1)
        borders = left * borders // rows if whole else left // rows * borders
        part = np.diff(borders)
        steps = int(-(-part.max() // length) if whole else part.min() // length)
        if not steps:
            raise DataError(
                f"data.max_length={length} is more than all documents together have ({total} "
                f"tokens); take shorter rows, or more text"
            )
        at = np.arange(steps)[:, None] * length
        said = np.clip(part - at, 0, length)
        fresh = np.broadcast_to(at == 0, said.shape)
        first = skip + borders[:-1] + at
        return cls(documents, ends, marks, length, first, said, fresh, False, size)

    @classmethod
    def of_documents(
        cls,
        documents: Rows,
        length: int,
        rows: int,
        marks: Marks,
        *,
        seed: int | None = None,
        epoch: int = 0,
        size: int = 0,
    ) -> InOrder:
        """Each row reads whole documents, one after the other; which, is by (seed, epoch)."""
        lengths = documents.lengths + 1
        ends = np.cumsum(lengths)
        counts = -(-lengths // length)  # segments of each
        order = np.arange(len(lengths))
        if seed is not None:
            order = np.random.default_rng([seed, epoch]).permutation(len(lengths))
        rows = max(1, min(rows, len(lengths)))
        row, begin, steps = _dealt(counts[order], rows)
        first, said = np.zeros((steps, rows), np.int64), np.zeros((steps, rows), np.int64)
        fresh = np.ones((steps, rows), np.bool_)
        for i, d in enumerate(order.tolist()):
            places = np.arange(counts[d]) * length
            here = slice(begin[i], begin[i] + counts[d]), row[i]
            first[here] = ends[d] - lengths[d] + places
            said[here] = np.minimum(length, lengths[d] - places)
            fresh[here] = places == 0
        return cls(documents, ends, marks, length, first, said, fresh, True, size)

    @property
    def lengths(self) -> Lengths:
        """Tokens that each segment says."""
        lengths: Lengths = self.said.ravel().astype(np.int64)
        return lengths

    @property
    def batches(self) -> list[Array]:
        """The numbers of the segments that are read together."""
        return list(np.arange(self.first.size).reshape(self.first.shape))

    def collate(self, index: Array) -> SegmentBatch:
        """The segments of these numbers, side by side."""
        first, said, fresh = (x.ravel()[index] for x in (self.first, self.said, self.fresh))
        at = np.arange(self.length)
        there = at < said[:, None]
        places = np.where(there, first[:, None] + at, 0)
        ids = np.where(there, self._token(places - 1, places), self.marks.end)
        labels = np.where(there, self._token(places, places), IGNORE)
        keep = None if not self.alone and there.all() else torch.from_numpy(there)
        tokens = int(said.sum())
        read, say, begins = (torch.from_numpy(x) for x in (ids, labels, fresh.copy()))
        return SegmentBatch(read, Grid(len(index), self.length, keep), say, begins, tokens)

    def _token(self, places: Array, owners: Array) -> Array:
        """The tokens at these places, as those in the documents of `owners` see them: what stands
        before a document that is by itself is the beginning mark."""
        document = np.searchsorted(self.ends, np.maximum(places, 0), side="right")
        lengths = self.documents.lengths[document]
        inside = places - (self.ends[document] - lengths - 1)
        at = self.documents.starts[document] + np.clip(inside, 0, np.maximum(lengths - 1, 0))
        ids = np.asarray(self.documents.ids[np.minimum(at, len(self.documents.ids) - 1)])
        found = np.where(inside == lengths, self.marks.end, ids.astype(np.int64))
        if not self.alone:
            return found
        own = np.searchsorted(self.ends, owners, side="right")
        return np.where(places < self.ends[own] - self.documents.lengths[own] - 1,
                        self.marks.begin, found)  # fmt: skip


def _dealt(counts: Array, rows: int) -> tuple[Array, Array, int]:
    """Each document to the row that is free first: its row, its first batch, and how many batches
    there are."""
    free = np.zeros(rows, np.int64)
    row, begin = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
    for i, count in enumerate(counts.tolist()):
        row[i] = free.argmin()
        begin[i] = free[row[i]]
        free[row[i]] += count
    return row, begin, int(free.max())
