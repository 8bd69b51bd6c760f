"""The largest of many numbers on a CPU: torch looks at each with its index, which is slow.

    best, where = highest(scores)               # as scores.max(-1)
    best, where = largest(scores, 8)            # as scores.topk(8)

First the largest of each chunk is found, which is one pass at the speed of memory; then only the
chunks that have the answer are looked at. What torch would choose among equals is left to torch.

Legend: R rows, V numbers in each, P chunks of W.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDE = 64  # numbers in a chunk
MANY = 1 << 13  # in a row: for fewer, torch's own is no slower


def highest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """R V → the largest of each row, R, and the first place where it stands."""
    if not _serves(scores):
        best = scores.max(-1)
        return best.values, best.indices
    tops, chunks, tail = _chunks(scores)
    at = tops.argmax(1, keepdim=True)  # the first of equals, here and below
    inside = _take(chunks, tail, at)[:, 0].argmax(1, keepdim=True)
    where = at * WIDE + inside
    return scores.gather(1, where)[:, 0], where[:, 0]


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """R V → the `count` largest of each row, the largest first, and where they stand: R count."""
    if not _serves(scores) or scores.shape[1] <= 4 * WIDE * count:
        return _torch(scores, count)
    tops, chunks, tail = _chunks(scores)
    at = tops.topk(count + 1, dim=1).indices  # who is among the largest is in one of these
    some = _take(chunks, tail, at).flatten(1)
    best, inside = some.topk(count + 1, dim=1)
    if undecided(best):
        return _torch(scores, count)
    where = at.gather(1, inside[:, :count] // WIDE) * WIDE + inside[:, :count] % WIDE
    return best[:, :count], where


def undecided(best: Tensor) -> bool:
    """Whether there are equals among the best, R C+1, the largest first, or what is no number:
    which of them comes first is torch's choice."""
    return bool((best[:, 1:] >= best[:, :-1]).any()) or bool(best.isnan().any())


def _serves(scores: Tensor) -> bool:
    return scores.device.type == "cpu" and scores.ndim == 2 and scores.shape[1] >= MANY


def _torch(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    best = scores.topk(count, dim=1)
    return best.values, best.indices


def _chunks(scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The largest of each chunk, R P; the whole chunks, R P W; and the last one, filled up, R W."""
    whole = scores.shape[1] // WIDE * WIDE
    chunks = scores[:, :whole].view(len(scores), -1, WIDE)
    tops = chunks.amax(2)
    if whole == scores.shape[1]:
        return tops, chunks, None
    rest = scores[:, whole:]
    tail = torch.nn.functional.pad(rest, (0, WIDE - rest.shape[1]), value=float("-inf"))
    return torch.cat([tops, tail.amax(1, keepdim=True)], 1), chunks, tail


def _take(chunks: Tensor, tail: Tensor | None, at: Tensor) -> Tensor:
    """The chunks `at` (R N) → R N W."""
    last = chunks.shape[1]
    index = at.clamp_max(last - 1)[..., None].expand(-1, -1, WIDE)
    taken = chunks.gather(1, index)
    if tail is None:
        return taken
    return torch.where((at == last)[..., None], tail[:, None], taken)
