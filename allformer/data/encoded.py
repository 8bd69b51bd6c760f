"""Parallel text as ids, compact in memory: one flat array and its offsets a side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError

if TYPE_CHECKING:
    from allformer.text.tokenizer import Tokenizer

Ids = npt.NDArray[Any]  # uint16 where the vocabulary allows it, else int32
Lengths = npt.NDArray[np.int64]
Encode = Callable[[list[str]], list[list[int]]]

_CHUNK = 8192  # pairs a call of the tokeniser


@dataclass(frozen=True, eq=False)
class Rows:
    """Sentences of different lengths in one array: row `i` is `rows[i]`."""

    ids: Ids
    lengths: Lengths
    starts: Lengths

    def __getitem__(self, i: int) -> Ids:
        return self.ids[self.starts[i] : self.starts[i] + self.lengths[i]]

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, index: npt.ArrayLike) -> Rows:
        """Some rows in some order, over the same ids: `rows.take([5, 0, 5])`."""
        chosen = np.asarray(index)
        return Rows(self.ids, self.lengths[chosen], self.starts[chosen])

    def flat(self) -> Ids:
        """The ids of all rows end to end, read at once: `rows.take(batch).flat()`."""
        shift = self.starts - (np.cumsum(self.lengths) - self.lengths)
        total = int(self.lengths.sum())
        return np.asarray(self.ids[np.arange(total) + np.repeat(shift, self.lengths)])

    @classmethod
    def from_lists(cls, rows: Iterable[list[int]]) -> Rows:
        """`Rows.from_lists(tokenizer.encode_batch(lines))`."""
        growing = _Growing(np.dtype(np.int32))
        growing.add(rows)
        return growing.rows()


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Ids of (source, target) pairs, with nothing added (no `<s>`, no `</s>`).

    >>> pairs = EncodedPairs.from_pairs(corpus.train, tokenizer, max_length=40)
    >>> len(pairs), pairs.dropped, pairs.longest
    (28955, 45, 52)
    >>> tokenizer.decode(pairs.source(0))
    'Two young, White males are outside near many bushes.'
    """

    sources: Rows
    targets: Rows
    dropped: int = 0  # pairs left out for being longer than max_length
    longest: int = 0  # ids in the longest sentence of either side, dropped ones included

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[tuple[str, str]],
        tokenizer: Tokenizer,
        max_length: int | None = None,
        sides: tuple[Encode, Encode] | None = None,
    ) -> EncodedPairs:
        """Encode a stream of pairs: `EncodedPairs.from_pairs(corpus.train, tokenizer, 128)`.

        A pair with more than `max_length` ids on either side is dropped, never cut: `.dropped`
        counts them and `.longest` says what it would take. `sides` encode sources and targets in
        a way of their own, with whatever stands around them.
        """
        if sides is None:
            sides = 2 * (partial(tokenizer.encode_batch, add_special_tokens=False),)
        dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
        sources, targets = _Growing(dtype), _Growing(dtype)
        dropped = longest = 0
        for chunk in chunks(pairs, _CHUNK):
            source, target = (
                encode([pair[side] for pair in chunk]) for side, encode in enumerate(sides)
            )
            lengths = [max(len(s), len(t)) for s, t in zip(source, target, strict=True)]
            longest = max(longest, *lengths)
            keep = [max_length is None or length <= max_length for length in lengths]
            dropped += keep.count(False)
            sources.add(compress(source, keep))
            targets.add(compress(target, keep))
        if not sources.lengths:
            raise DataError(nothing_left(dropped, longest, max_length))
        return cls(sources.rows(), targets.rows(), dropped, longest)

    def __len__(self) -> int:
        return len(self.sources.lengths)

    def source(self, i: int) -> Ids:
        """The source ids of pair `i`, a view: `pairs.source(0)`."""
        return self.sources[i]

    def target(self, i: int) -> Ids:
        """The target ids of pair `i`, a view: `pairs.target(0)`."""
        return self.targets[i]

    @property
    def source_lengths(self) -> Lengths:
        """Ids in each source sentence."""
        return self.sources.lengths

    @property
    def target_lengths(self) -> Lengths:
        """Ids in each target sentence."""
        return self.targets.lengths


class _Growing:
    """Rows to which more are added, a chunk at a time."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.parts: list[Ids] = []
        self.lengths: list[int] = []

    def add(self, rows: Iterable[list[int]]) -> None:
        rows = list(rows)
        self.lengths.extend(map(len, rows))
        self.parts.append(np.fromiter(chain.from_iterable(rows), self.dtype))

    def rows(self) -> Rows:
        lengths = np.array(self.lengths, np.int64)
        return Rows(np.concatenate(self.parts), lengths, np.cumsum(lengths) - lengths)


def chunks(pairs: Iterable[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    stream = iter(pairs)
    while chunk := list(islice(stream, size)):
        yield chunk


def nothing_left(dropped: int, longest: int, max_length: int | None) -> str:
    if not dropped:
        return "there is no pair to encode; the data is empty"
    return (
        f"max_length={max_length} drops all {dropped} pairs; the longest sentence has {longest} "
        "ids: raise data.max_length and train.batch_tokens above that, or set data.truncate"
    )
