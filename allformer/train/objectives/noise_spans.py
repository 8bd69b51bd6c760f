"""T5's span corruption: which tokens are noise, and how inputs and targets are made of it.

Of n tokens 15 % are noise, in spans of 3 on average (Raffel et al. 2020, section 3.1.4). Both the
noise and the rest are cut at random into equally many spans, which take turns, the rest first. In
the input each span of noise is one sentinel; the target has each sentinel and what it stands for:

    text    Thank you for inviting me to your party last week
    input   Thank you <extra_id_0> me to your party <extra_id_1>
    target  <extra_id_0> for inviting <extra_id_1> last week

Legend: R rows, N tokens of all rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from allformer.data.draws import Draws
from allformer.data.encoded import Rows
from allformer.train.batch import Array
from allformer.train.objectives.ragged import each, flat_rows, gather, least


class Noise(NamedTuple):
    """How much of rows is noise; figures are the paper's."""

    rate: float = 0.15
    mean: float = 3.0

    def counts(self, lengths: Array) -> tuple[Array, Array]:
        """Tokens that are noise, and spans of it, of rows of at least two tokens."""
        lengths = np.asarray(lengths, np.int64)
        tokens = np.clip(np.rint(lengths * self.rate).astype(np.int64), 1, lengths - 1)
        spans = np.maximum(1, np.rint(tokens / self.mean).astype(np.int64))
        return tokens, np.minimum(spans, lengths - tokens)

    def sizes(self, lengths: Array) -> tuple[Array, Array]:
        """Tokens of input and target, without an end token."""
        tokens, spans = self.counts(lengths)
        return np.asarray(lengths) - tokens + spans, tokens + spans

    def fitting(self, length: int, ends: int = 1) -> int:
        """The most tokens whose input is at most `length`, `ends` end tokens included: 568 for
        T5's 512, whose targets then have 114."""
        tokens = max(2, length - ends)
        while self.sizes(np.array([tokens + 1]))[0][0] + ends <= length:
            tokens += 1
        return tokens


def noised(
    rows: Rows, index: Array, draws: Draws, noise: Noise, sentinels: Array
) -> tuple[Rows, Rows]:
    """Inputs and targets of rows whose numbers are `index`."""
    ids, lengths = gather(rows), rows.lengths
    hidden = noise_mask(lengths, index, draws, noise)
    tokens, spans = noise.counts(lengths)
    _, place = each(lengths)
    turn = np.concatenate([[True], hidden[1:] != hidden[:-1]]) | (place == 0)
    _, number = each(spans)  # of each span in its row: its sentinel
    inputs, targets = ids.copy(), ids.copy()
    inputs[turn & hidden] = sentinels[number]
    targets[turn & ~hidden] = sentinels[number]
    read, said = inputs[~hidden | turn], targets[hidden | turn]
    return flat_rows(read, lengths - tokens + spans), flat_rows(said, tokens + spans)


def noise_mask(lengths: Array, index: Array, draws: Draws, noise: Noise) -> Array:
    """N: whether a token is noise."""
    tokens, spans = noise.counts(lengths)
    rest = _parts(lengths - tokens, spans, draws, index, 0)
    hidden = _parts(tokens, spans, draws, index, 1)
    turns = np.stack([rest, hidden], 1).ravel()
    return np.repeat(np.tile([False, True], len(rest)), turns)


def _parts(totals: Array, counts: Array, draws: Draws, index: Array, kind: int) -> Array:
    """The sizes of random parts, each at least 1, of every row's total: row after row."""
    row, place = each(totals - 1)  # places where it can be cut
    cuts = least(draws(index[row], place, kind), totals - 1, counts - 1)
    first = np.zeros(int(totals.sum()), bool)
    starts = np.cumsum(totals) - totals
    first[starts] = True
    first[(starts[row] + place + 1)[cuts]] = True
    return np.diff(np.append(np.flatnonzero(first), len(first)))
