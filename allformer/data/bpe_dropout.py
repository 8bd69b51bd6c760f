"""BPE-dropout fast enough for a GPU: words are found once, and cut anew each epoch.

    recut = Recut.from_pairs(corpus.train, tokenizer, dropout=0.1, max_length=127)
    pairs = recut(seed=0, epoch=3)      # EncodedPairs, other cuts each time

Most of a tokeniser's time goes into finding the words. Each different word is cut as often as it
occurs, but no more than `_CUTS` times an epoch; each place of the text takes one of its cuts.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from allformer.data.encoded import EncodedPairs, Rows, chunks, nothing_left
from allformer.errors import DataError

if TYPE_CHECKING:
    from allformer.text.words import WordCutter
    from allformer.text.wrapper import Tokenizer

Numbers = npt.NDArray[Any]

_CUTS = 16
_CHUNK = 8192  # pairs whose words are looked up together


class Recut:
    """The words of parallel text, and a tokeniser that cuts them."""

    def __init__(
        self,
        words: list[str],
        sources: tuple[Numbers, Numbers],
        targets: tuple[Numbers, Numbers],
        cutter: WordCutter,
        dtype: npt.DTypeLike,
        max_length: int | None,
    ) -> None:
        self._sides = sources, targets  # of each: the words' numbers, and how many a row has
        self._cutter, self._dtype, self._limit = cutter, dtype, max_length
        counts = np.bincount(np.concatenate([sources[0], targets[0]]), minlength=len(words))
        self._cuts = np.minimum(counts, _CUTS)
        self._first = np.cumsum(self._cuts) - self._cuts
        self._words = list(chain.from_iterable(map(repeat, words, self._cuts.tolist())))

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[tuple[str, str]],
        tokenizer: Tokenizer,
        *,
        dropout: float,
        max_length: int | None = None,
    ) -> Recut:
        """Find the words of a stream of pairs; the text itself is not kept."""
        from allformer.text.words import WordCutter

        cutter = WordCutter(tokenizer, dropout)
        number: dict[str, int] = {}
        found: tuple[list[Numbers], list[Numbers]] = ([], [])
        counts: tuple[list[int], list[int]] = ([], [])
        for chunk in chunks(pairs, _CHUNK):
            for side in (0, 1):
                rows = [cutter.find(pair[side]) for pair in chunk]
                counts[side].extend(map(len, rows))
                numbers = [number.setdefault(w, len(number)) for row in rows for w in row]
                found[side].append(np.array(numbers, np.int32))
        if not number:
            raise DataError(nothing_left(0, 0, max_length))
        sides = [(np.concatenate(f), np.array(c)) for f, c in zip(found, counts, strict=True)]
        dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
        return cls(list(number), sides[0], sides[1], cutter, dtype, max_length)

    def __call__(self, seed: int, epoch: int) -> EncodedPairs:
        """The pairs of one epoch; (seed, epoch) choose among the cuts, which cannot be seeded."""
        cuts = self._cutter.cut(self._words)
        lengths = np.fromiter(map(len, cuts), np.int64, len(cuts))
        ids = np.fromiter(chain.from_iterable(cuts), self._dtype, int(lengths.sum()))
        drawn = Rows(ids, lengths, np.cumsum(lengths) - lengths)
        random = np.random.default_rng([seed, epoch])
        source, target = (self._put_together(*side, drawn, random) for side in self._sides)
        longest = np.maximum(source.lengths, target.lengths)
        keep = longest <= (longest.max() if self._limit is None else self._limit)
        dropped = int(len(keep) - keep.sum())
        if not keep.any():
            raise DataError(nothing_left(dropped, int(longest.max()), self._limit))
        source, target = (Rows(s.ids, s.lengths[keep], s.starts[keep]) for s in (source, target))
        return EncodedPairs(source, target, dropped, int(longest.max()))

    def _put_together(
        self, words: Numbers, counts: Numbers, drawn: Rows, random: np.random.Generator
    ) -> Rows:
        """One of its cuts for each word of one side, end to end."""
        pick = self._first[words] + random.integers(0, self._cuts[words])
        lengths = drawn.lengths[pick]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        shift = np.repeat(drawn.starts[pick] - ends[:-1], lengths)  # from here to the drawn cut
        ids = drawn.ids[shift + np.arange(len(shift))]
        last = np.cumsum(counts)
        starts = ends[last - counts]
        return Rows(ids, ends[last] - starts, starts)
