"""One text or a pair of them as a row of an encoder: `<s> A </s>`, `<s> A </s> B </s>`.

Legend: N tokens of a batch, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from allformer.core.layout import Grid, Layout
from allformer.data.documents import StreamRows, cut_documents, cut_stream
from allformer.data.encoded import Lengths, Rows
from allformer.train.batch import Array, Frame, lay_rows
from allformer.train.objectives.words import Marks


class Laid(NamedTuple):
    """Rows of a batch, with the marks around texts."""

    ids: Array  # N
    types: Array  # N: 1 in the second text and at its end
    row: Array  # N
    place: Array  # N
    first: Array  # R: where each row begins; a row without tokens at any token
    layout: Layout
    real: int  # tokens that are no filler


@dataclass(frozen=True, eq=False)
class TextRows:
    """Rows of one text or of two; the texts lie in one array of ids."""

    first: Rows
    second: Rows | None = None

    @classmethod
    def cut(cls, documents: Rows, length: int) -> TextRows:
        """Each document in pieces that fit rows of `length`, marks included."""
        return cls(cut_documents(documents, length - 2))

    @property
    def lengths(self) -> Lengths:
        """Tokens of each row."""
        return self.first.lengths + (2 if self.second is None else self.second.lengths + 3)

    def lay(self, index: Array, marks: Marks, frame: Frame | None = None) -> Laid:
        """Packed."""
        laid = lay_rows(self.lengths[index], frame)
        row, place = laid.row[: laid.real], laid.place[: laid.real]
        ids = np.full(len(laid.row), marks.end, np.int64)
        types = np.zeros(len(laid.row), np.int64)
        ids[laid.starts[: len(index)]] = marks.begin
        a = self.first.lengths[index][row]
        inside = (place > 0) & (place <= a)
        ids[: laid.real][inside] = _at(self.first, index, row, place - 1, inside)
        if self.second is not None:
            b = self.second.lengths[index][row]
            inside = (place > a + 1) & (place <= a + 1 + b)
            ids[: laid.real][inside] = _at(self.second, index, row, place - a - 2, inside)
            types[: laid.real] = place > a + 1
        first = np.minimum(laid.starts[:-1], len(laid.row) - 1)
        return Laid(ids, types, laid.row, laid.place, first, laid.packed(), laid.real)


def _at(rows: Rows, index: Array, row: Array, place: Array, inside: Array) -> Array:
    return np.asarray(rows.ids[(rows.starts[index][row] + place)[inside]])


@dataclass(frozen=True, eq=False)
class FullRows:
    """Rows of one length across documents, the end mark between them: `<s> … </s> … </s>`."""

    stream: StreamRows | None  # None: not even one row
    count: int

    @classmethod
    def cut(
        cls, documents: Rows, length: int, marks: Marks, seed: int | None = None, epoch: int = 0
    ) -> FullRows:
        """From an offset by (seed, epoch) on, if there is a seed."""
        stream = cut_stream(documents, length - 2, marks.end, seed=seed, epoch=epoch)
        return cls(stream, len(stream))

    def rounded(self, rows: int) -> FullRows:
        """Only as many as fill batches of so many rows: they all have one size."""
        return FullRows(self.stream, self.count - self.count % min(rows, max(1, self.count)))

    @property
    def lengths(self) -> Lengths:
        """Tokens of each row."""
        return np.full(self.count, 0 if self.stream is None else self.stream.length + 2, np.int64)

    def lay(self, index: Array, marks: Marks, frame: Frame | None = None) -> Laid:
        """A grid without padding."""
        assert self.stream is not None
        inner = self.stream.take(index).astype(np.int64)
        rows, width = len(index), inner.shape[1] + 2
        ids = np.full((rows, width), marks.end, np.int64)
        ids[:, 0], ids[:, 1:-1] = marks.begin, inner
        row, place = (x.ravel() for x in np.indices((rows, width)))
        types = np.zeros(rows * width, np.int64)
        first = np.arange(rows) * width
        return Laid(ids.ravel(), types, row, place, first, Grid(rows, width), rows * width)
