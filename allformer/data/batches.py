"""Batches by token budget: as many sentences as fit, alike in length, in a new order each epoch."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from allformer.errors import TrainingError

Indices = npt.NDArray[np.int64]


def token_batches(
    source_lengths: npt.ArrayLike,
    target_lengths: npt.ArrayLike,
    budget: int,
    *,
    seed: int,
    epoch: int,
    pool: int = 0,
    max_rows: int | None = None,
) -> list[Indices]:
    """Cut an epoch into batches of at most `budget` source tokens and `budget` target tokens.

    >>> token_batches([5, 3, 9], [4, 4, 8], budget=10, seed=0, epoch=0)
    [array([2]), array([0, 1])]

    Every sentence is in exactly one batch, and (seed, epoch) alone decides which, in any process.
    `pool` = 0 fills batches at random. `pool` = n sorts n batches' worth of sentences by length
    before they are cut, so that the rows of a batch are alike and padding is small; the larger
    the pool, the less padding and the less chance. The order of the batches is random either way.
    """
    source = np.asarray(source_lengths, dtype=np.int64)
    target = np.asarray(target_lengths, dtype=np.int64)
    _check(source, target, budget, pool, max_rows)
    if not len(source):
        return []
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(source))
    if pool:
        rows = max(1, int(budget / max(source.mean(), target.mean(), 1)))
        order = _sort_pools(order, source, target, pool * min(rows, max_rows or rows))
    batches = _cut(order, source[order], target[order], budget, max_rows or len(order))
    return [batches[i] for i in random.permutation(len(batches))]


def _sort_pools(order: Indices, source: Indices, target: Indices, size: int) -> Indices:
    """Sort each `size` indices by length; every other pool falls, so that neighbours meet."""
    pools = np.arange(len(order)) // size
    sign = 1 - 2 * (pools % 2)
    first = np.maximum(source, target)[order]
    second = np.minimum(source, target)[order]
    return order[np.lexsort((sign * second, sign * first, pools))]


def _cut(
    order: Indices, source: Indices, target: Indices, budget: int, max_rows: int
) -> list[Indices]:
    """Fill batch after batch, each as full as it goes: find in the running sums where it ends."""
    source_ends, target_ends = np.cumsum(source).tolist(), np.cumsum(target).tolist()
    batches = []
    start = source_done = target_done = 0
    while start < len(order):
        limit = min(start + max_rows, len(order))
        limit = bisect_right(source_ends, source_done + budget, start, limit)
        end = bisect_right(target_ends, target_done + budget, start, limit)
        batches.append(order[start:end])
        start, source_done, target_done = end, source_ends[end - 1], target_ends[end - 1]
    return batches


def _check(source: Indices, target: Indices, budget: int, pool: int, rows: int | None) -> None:
    if source.ndim != 1 or source.shape != target.shape:
        raise TrainingError(
            f"source_lengths {source.shape} and target_lengths {target.shape} must be two lists of "
            "one length"
        )
    if budget < 1 or pool < 0 or (rows is not None and rows < 1):
        raise TrainingError(
            f"budget={budget}, pool={pool}, max_rows={rows}: budget and max_rows must be at least "
            "1, pool at least 0"
        )
    for side, lengths in (("source", source), ("target", target)):
        over = np.flatnonzero(lengths > budget)
        if len(over):
            worst = over[lengths[over].argmax()]
            raise TrainingError(
                f"sentence {worst} has {lengths[worst]} {side} tokens, more than budget={budget} "
                f"({len(over)} such sentences); use budget={lengths[worst]} or more, or drop long "
                "pairs with max_length"
            )
