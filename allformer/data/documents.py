"""Documents into rows for language models, as arithmetic on offsets: no token is copied.

Two ways. `cut_stream`: all documents end to end, cut into rows of equal length, as nanoGPT does; a
row may begin in the middle of one document and end in another. `cut_documents` and `pack`: each
document stays by itself, pieces of several share a row, and where they border is known, so that a
`Packed` layout keeps them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allformer.data.encoded import Ids, Lengths, Rows
from allformer.errors import DataError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StreamRows:
    """Rows of equal length out of documents end to end; made by `cut_stream`."""

    rows: Rows
    ends: Lengths  # where each document ends in the stream, its end token included
    length: int
    step: int  # from the beginning of a row to that of the next
    offset: int
    eos: int | None

    def __len__(self) -> int:
        tokens = int(self.ends[-1]) - self.offset
        return max(0, (tokens - self.length) // self.step + 1)

    @property
    def lengths(self) -> Lengths:
        """Tokens of each row: all the same."""
        return np.full(len(self), self.length, np.int64)

    def __getitem__(self, i: int) -> Ids:
        row: Ids = self.take([i])[0]
        return row

    def take(self, index: npt.ArrayLike) -> Ids:
        """Some rows as a matrix, n × length: `stream.take([3, 0])`."""
        first = self.offset + np.asarray(index, np.int64) * self.step
        places = (first[:, None] + np.arange(self.length)).ravel()
        document = np.searchsorted(self.ends, places, side="right")
        lengths = self.rows.lengths[document]
        end = self.ends[document] - (self.eos is not None)  # of the document without its end token
        inside = places - (end - lengths)
        at = self.rows.starts[document] + np.minimum(inside, np.maximum(lengths - 1, 0))
        ids = np.asarray(self.rows.ids[np.minimum(at, len(self.rows.ids) - 1)])
        if self.eos is not None:
            ids = _wide(ids, self.eos)
            ids[places == end] = self.eos
        return ids.reshape(-1, self.length)


def cut_stream(
    rows: Rows,
    length: int,
    eos: int | None,
    *,
    seed: int | None = None,
    epoch: int = 0,
    overlap: int = 0,
) -> StreamRows:
    """All documents end to end, `eos` after each, cut into rows of exactly `length` tokens.

    >>> stream = cut_stream(Rows.from_lists([[5, 6, 7], [8]]), 2, eos=0)
    >>> stream.take(range(len(stream))).tolist()
    [[5, 6], [7, 0], [8, 0]]

    With a `seed` the first row begins at an offset that (seed, epoch) decides, so that borders lie
    elsewhere in each epoch; the few tokens before it, and those after the last whole row, wait for
    another epoch. `overlap=1` lets each row begin with the last token of the one before: of rows
    of n + 1 tokens every token is then predicted once. `eos=None`: the documents have theirs.
    """
    if length < 1 or not 0 <= overlap < length:
        raise DataError(
            f"length={length}, overlap={overlap}: length must be at least 1, overlap less than it"
        )
    ends = np.cumsum(rows.lengths + (eos is not None))
    total, step = int(ends[-1]) if len(ends) else 0, length - overlap
    if total < length or not len(rows.ids):
        raise DataError(
            f"length={length} is more than all documents together have ({total} tokens); take "
            "shorter rows, or more text"
        )
    # The offset costs no more than the last row would have left over, or a step.
    room = min(step, total - length + 1)
    offset = 0 if seed is None else int(np.random.default_rng([seed, epoch]).integers(room))
    return StreamRows(rows, ends, length, step, offset, eos)


def cut_documents(rows: Rows, length: int) -> Rows:
    """Each document in pieces of at most `length` tokens, over the same ids.

    >>> pieces = cut_documents(Rows.from_lists([[5, 6, 7], [8]]), 2)
    >>> [pieces[i].tolist() for i in range(len(pieces))]
    [[5, 6], [7], [8]]

    Empty documents give none.
    """
    if length < 1:
        raise DataError(f"length={length} must be at least 1")
    counts = -(-rows.lengths // length)
    document = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = rows.starts[document] + number * length
    lengths = np.minimum(rows.lengths[document] - number * length, length)
    return Rows(rows.ids, lengths, starts)


@dataclass(frozen=True, eq=False)
class Packing:
    """Which pieces share a row: `packing[i]` are the pieces of row i. Made by `pack`."""

    order: Indices  # all pieces, row after row
    starts: Indices  # rows + 1: where each row begins in `order`
    lengths: Lengths  # tokens of each row

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Indices:
        return self.order[self.starts[i] : self.starts[i + 1]]

    def take(self, index: npt.ArrayLike) -> Indices:
        """The pieces of several rows, end to end: `pieces.take(packing.take(batch)).flat()`."""
        rows = [self[i] for i in np.asarray(index).tolist()]
        return np.concatenate(rows) if rows else self.order[:0]


def pack(lengths: npt.ArrayLike, length: int, *, seed: int, epoch: int = 0) -> Packing:
    """Put pieces together into rows of at most `length` tokens, as few as best fit finds.

    >>> packing = pack([3, 7, 5, 2, 2], 10, seed=0)
    >>> len(packing), sorted(packing.lengths.tolist())
    (2, [9, 10])

    Best-fit decreasing: the longest piece first, each into the fullest row that takes it; at worst
    11/9 of the fewest rows possible (Johnson et al., 1974). Which of the pieces of one length come
    together, and the order of the rows, is by (seed, epoch) alone.
    """
    sizes = np.asarray(lengths, np.int64)
    if len(sizes) and (sizes.max() > length or sizes.min() < 1):
        worst = int(sizes.max() if sizes.max() > length else sizes.min())
        raise DataError(
            f"a piece of {worst} tokens does not fit rows of 1 to length={length}; cut it with "
            "cut_documents first"
        )
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(len(sizes))
    falling = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    row, count = _best_fit(sizes[falling], length)
    row = random.permutation(count)[row]  # rows in a random order too
    by_row = np.lexsort((np.arange(len(row)), row))
    order = falling[by_row]
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])
    filled = np.bincount(row, weights=sizes[falling], minlength=count).astype(np.int64)
    return Packing(order, starts.astype(np.int64), filled)


def _best_fit(sizes: Indices, length: int) -> tuple[Indices, int]:
    """The row of each piece, pieces falling in size.

    Pieces of one size are served together, and so are rows with equal room: a row that is the
    fullest to take one piece stays the fullest until it takes no more.
    """
    row = np.empty(len(sizes), np.int64)
    room: list[list[Indices]] = [[] for _ in range(length + 1)]  # rows by the room that is left
    waiting = np.zeros(length + 1, np.int64)  # how many rows there are in each
    rows = done = 0

    def fill(there: Indices, space: int, size: int, left: int) -> int:
        each = space // size
        used = there[: -(-left // each)]
        count = min(left, len(used) * each)
        row[done : done + count] = np.repeat(used, each)[:count]
        whole, some = divmod(count, each)
        for rest, part in (
            (space - each * size, used[:whole]),
            (space - some * size, used[whole:]),
            (space, there[len(used) :]),
        ):
            room[rest].append(part)
            waiting[rest] += len(part)
        return count

    for size, left in zip(*_runs(sizes), strict=True):
        for space in (size + np.flatnonzero(waiting[size:])).tolist():
            if left:
                there, room[space], waiting[space] = np.concatenate(room[space]), [], 0
                count = fill(there, space, size, left)
                done, left = done + count, left - count
        if left:
            new = np.arange(rows, rows - (-left // (length // size)))
            done, rows = done + fill(new, length, size, left), rows + len(new)
    return row, rows


def _runs(sizes: Indices) -> tuple[list[int], list[int]]:
    """Different sizes and how many there are of each, falling."""
    values, counts = np.unique(sizes, return_counts=True)
    return values[::-1].tolist(), counts[::-1].tolist()


def _wide(ids: Ids, eos: int) -> Ids:
    """Ids that can hold the end token too."""
    fits = 0 <= eos <= np.iinfo(ids.dtype).max
    return ids if fits else ids.astype(np.int32)
