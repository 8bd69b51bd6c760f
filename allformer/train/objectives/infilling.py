"""BART's noise: spans become one mask each, tokens are hidden or left out, sentences change places.

Text infilling (Lewis et al. 2020, section 2.2): spans whose lengths are Poisson(3) are hidden until
30 % of the tokens are, each behind a single mask; a span of length 0 is a mask where nothing was.

Legend: R rows, N tokens of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from allformer.data.draws import Draws
from allformer.data.encoded import Rows
from allformer.train.batch import Array
from allformer.train.objectives.ragged import each, flat_rows, gather, least

_LENGTH, _PLACE, _TOKEN, _ORDER = range(4)  # what a random number is for


def shuffled(rows: Rows, sentences: Rows, index: Array, draws: Draws) -> Rows:
    """Each row's sentences in random order; `sentences` are the lengths of them, row by row."""
    row, place = each(sentences.lengths)
    size = gather(sentences)
    start = np.cumsum(size) - size  # the rows lie end to end after `gather`
    order = np.lexsort((draws(index[row], place, _ORDER), row))
    moved = Rows(gather(rows), size[order], start[order])
    return flat_rows(gather(moved), rows.lengths)


def infilled(rows: Rows, index: Array, draws: Draws, rate: float, mean: float, mask: int) -> Rows:
    """Spans of Poisson lengths, each behind one mask."""
    ids, lengths = gather(rows), rows.lengths
    budget = np.maximum(int(rate > 0), np.rint(rate * lengths).astype(np.int64))
    row, place = each(budget)  # as many spans at most: even if each hides one token
    size = poisson(draws(index[row], place, _LENGTH), mean)
    before = np.cumsum(size) - size
    before -= np.repeat(before[np.cumsum(budget) - budget], budget)
    used = before < budget[row]
    row, size = row[used], np.minimum(size, budget[row] - before)[used]
    spans = np.bincount(row, minlength=len(lengths))
    hidden = np.bincount(row, weights=size, minlength=len(lengths)).astype(np.int64)
    # What is left, and the spans, in random order: which of the places are spans?
    items = lengths - hidden + spans
    owner, number = each(items)
    is_span = least(draws(index[owner], number, _PLACE), items, spans)
    widths = np.ones(len(owner), np.int64)
    widths[is_span] = size
    at = np.minimum(np.cumsum(widths) - widths, len(ids) - 1)
    return flat_rows(np.where(is_span, mask, ids[at]), items)


def masked(rows: Rows, index: Array, draws: Draws, rate: float, mean: float, mask: int) -> Rows:
    """Tokens behind a mask each."""
    ids = gather(rows)
    return flat_rows(np.where(_some(rows, index, draws, rate), mask, ids), rows.lengths)


def deleted(rows: Rows, index: Array, draws: Draws, rate: float, mean: float, mask: int) -> Rows:
    """Tokens that are not there: the model must find out where."""
    gone = _some(rows, index, draws, rate)
    row, _ = each(rows.lengths)
    left = rows.lengths - np.bincount(row[gone], minlength=len(rows.lengths))
    return flat_rows(gather(rows)[~gone], left)


def _some(rows: Rows, index: Array, draws: Draws, rate: float) -> Array:
    """N: to the nearest token, the share `rate` of each row."""
    row, place = each(rows.lengths)
    wanted = np.rint(rate * rows.lengths).astype(np.int64)
    return least(draws(index[row], place, _TOKEN), rows.lengths, wanted)


NOISES: dict[str, Callable[[Rows, Array, Draws, float, float, int], Rows]] = {
    "infill": infilled, "mask": masked, "delete": deleted,
}  # fmt: skip


def poisson(chance: Array, mean: float) -> Array:
    """Whole numbers of a Poisson distribution from numbers in 0 … 1, by its cumulative sums."""
    term, sums = math.exp(-mean), [math.exp(-mean)]
    while sums[-1] < 1 - 1e-12 and len(sums) < 1000:
        term *= mean / len(sums)
        sums.append(sums[-1] + term)
    return np.searchsorted(np.array(sums[:-1]), chance, side="right").astype(np.int64)
