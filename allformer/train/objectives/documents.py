"""Documents as rows that are read and said, each token said once.

Two ways: `AcrossRows`, all documents end to end, cut into rows of one length (nanoGPT's), which a
dense grid holds; `DocumentRows`, each document by itself, in pieces where it is long.

Legend: L length of a row, N tokens of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.core.layout import Grid, Layout
from allformer.core.loss import IGNORE
from allformer.data.documents import StreamRows, cut_documents, cut_stream
from allformer.data.encoded import Lengths, Rows
from allformer.train.batch import Array, Frame, lay_rows
from allformer.train.objectives.words import Marks


class LineBatch(NamedTuple):
    """What is read, and what has to be said: the token that follows."""

    ids: Tensor  # R L, or N where rows are packed
    layout: Layout
    labels: Tensor  # the same; −100 in filler
    tokens: int  # labels that count


@dataclass(frozen=True, eq=False)
class AcrossRows:
    """Rows of L + 1 tokens, of which the last begins the next row; perhaps a shorter one behind."""

    stream: StreamRows | None  # None: not even one row
    count: int  # whole rows
    rest: StreamRows | None = None  # one row: what the whole ones leave
    size: int = 0  # bytes of the text, where they are known

    @classmethod
    def cut(cls, documents: Rows, length: int, end: int, *, seed: int, epoch: int) -> AcrossRows:
        """For training, from an offset by (seed, epoch) on; the rest waits for another epoch."""
        stream = cut_stream(documents, length + 1, end, seed=seed, epoch=epoch, overlap=1)
        return cls(stream, len(stream))

    @classmethod
    def whole(cls, documents: Rows, length: int, end: int) -> AcrossRows:
        """For validation: all tokens but the very first are said."""
        total = int(documents.lengths.sum()) + len(documents)
        count, rest = divmod(total - 1, length)
        stream = cut_stream(documents, min(length, total - 1) + 1, end, overlap=1)
        tail = replace(stream, length=rest + 1, step=rest, offset=count * length) if rest else None
        return cls(stream, count, tail)

    @classmethod
    def none(cls) -> AcrossRows:
        """Of a part of a stream that is too short for a row."""
        return cls(None, 0)

    def rounded(self, rows: int) -> AcrossRows:
        """Only as many as fill batches of so many rows: they all have one size."""
        return replace(self, count=self.count - self.count % min(rows, max(1, self.count)))

    @property
    def lengths(self) -> Lengths:
        """Tokens that each row says."""
        whole = 0 if self.stream is None else self.stream.length - 1
        rest = [] if self.rest is None else [self.rest.length - 1]
        return np.array([whole] * self.count + rest, np.int64)

    def collate(self, index: Array) -> LineBatch:
        """A grid without padding; packed if the shorter row is among them."""
        assert self.stream is not None
        whole = self.stream.take(index[index < self.count]).astype(np.int64)
        read, said = (np.ascontiguousarray(x) for x in (whole[:, :-1], whole[:, 1:]))
        layout: Layout = Grid(*read.shape)
        if len(whole) < len(index):
            assert self.rest is not None
            last = self.rest.take([0])[0].astype(np.int64)
            read, said = (np.append(x, y) for x, y in ((read, last[:-1]), (said, last[1:])))
            lengths = [self.stream.length - 1] * len(whole) + [self.rest.length - 1]
            layout = lay_rows(np.array(lengths)).packed()
        return LineBatch(torch.from_numpy(read), layout, torch.from_numpy(said), said.size)


@dataclass(frozen=True, eq=False)
class DocumentRows:
    """Pieces of documents, each of at most L tokens to say: the first reads the beginning token
    before anything is said, the last says the end token."""

    documents: Rows
    pieces: Rows  # of imaginary documents that are one longer: `starts` count from 0 in each
    owner: Array
    marks: Marks
    size: int = 0  # bytes of the text, where they are known

    @classmethod
    def cut(cls, documents: Rows, length: int, marks: Marks) -> DocumentRows:
        """`DocumentRows.cut(table["ids"], 256, marks)`."""
        said = documents.lengths + 1
        flat = Rows(documents.ids, said, np.zeros_like(said))
        counts = -(-said // length)
        return cls(
            documents, cut_documents(flat, length), np.repeat(np.arange(len(said)), counts), marks
        )

    @property
    def lengths(self) -> Lengths:
        """Tokens that each row says."""
        return self.pieces.lengths

    def collate(self, index: Array, frame: Frame | None = None) -> LineBatch:
        """Packed: no document sees another."""
        laid = lay_rows(self.lengths[index], frame)
        row, real = laid.row[: laid.real], laid.real
        owner = self.owner[index][row]
        place = self.pieces.starts[index][row] + laid.place[:real]  # in its document
        begin, length = self.documents.starts[owner], self.documents.lengths[owner]
        read = np.full(len(laid.row), self.marks.end, np.int64)
        said = np.full(len(laid.row), IGNORE, np.int64)
        ids = self.documents.ids
        read[:real] = np.where(place > 0, ids[begin + np.maximum(place - 1, 0)], self.marks.begin)
        said[:real] = np.where(
            place < length, ids[begin + np.minimum(place, length - 1)], self.marks.end
        )
        both = torch.from_numpy(read), torch.from_numpy(said)
        return LineBatch(both[0], laid.packed(), both[1], real)
