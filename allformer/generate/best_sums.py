"""The best ways on of a row's beams, without the log-probabilities of a whole vocabulary.

    if serves(logits, count):
        best, where = best_sums(logits, score, count, never)

As `(logits.log_softmax(-1) + score).topk(count)` over the beams of a row, where `never` are not
said. That reads and writes all scores four times; here one pass finds the largest of each chunk and
what the row's exponentials sum to, and only the chunks that have the answer are looked at. What
torch would choose among equals is left to torch.

Legend: B rows, K beams, V vocabulary, C candidates, P chunks of a beam, W numbers in each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.lean.native import WIDE, find_few
from allformer.generate.largest import MANY, undecided


def serves(logits: Tensor, count: int) -> bool:
    """Whether there is a compiled pass, and rows are so long that it is worth it."""
    plain = logits.device.type == "cpu" and logits.dtype == torch.float32
    wide = logits.shape[1] >= MANY and logits.shape[1] > 4 * WIDE * count
    return plain and wide and find_few() is not None


def best_sums(logits: Tensor, score: Tensor, count: int, never: Tensor) -> tuple[Tensor, Tensor]:
    """logits B·K V, score B K → the `count` largest sums of each row, the largest first, and where
    they stand among its K·V: B C each. The logits of `never` (a few tokens) become −∞."""
    few = find_few()
    assert few is not None, "serves() is asked first"
    tops, top, mass = few.tops(logits)
    _forbid(logits, tops, never)
    (rows, beams), (_, vocab), chunks = score.shape, logits.shape, tops.shape[1]
    whole = score.reshape(-1, 1)  # B·K 1
    at = _sums(tops, top, mass, whole).view(rows, -1).topk(count + 1, dim=1).indices  # B C+1
    # Who is among the largest is in one of these chunks.
    first = torch.arange(0, rows * beams, beams)[:, None]
    mine = (first + at // chunks)[..., None]  # B C+1 1, among B·K
    places = (at % chunks * WIDE)[..., None] + torch.arange(WIDE)  # B C+1 W
    some = logits[mine, places.clamp_max(vocab - 1)].masked_fill_(places >= vocab, float("-inf"))
    some = _sums(some, top[mine, 0], mass[mine, 0], whole[mine, 0])
    best, inside = some.flatten(1).topk(count + 1, dim=1)
    if undecided(best):
        every = _sums(logits, top, mass, whole).view(rows, -1).topk(count, dim=1)
        return every.values, every.indices
    where = (at // chunks * vocab)[..., None] + places
    return best[:, :count], where.flatten(1).gather(1, inside[:, :count])


def _sums(x: Tensor, top: Tensor, mass: Tensor, score: Tensor) -> Tensor:
    """Log-probabilities as torch's log_softmax has them, and the beams' scores."""
    return (x - top).sub_(mass).add_(score)


def _forbid(logits: Tensor, tops: Tensor, never: Tensor) -> None:
    """−∞ for tokens that are not said; the largest of their chunks is another then."""
    logits.index_fill_(1, never, float("-inf"))
    for chunk in {token // WIDE for token in never.tolist()}:
        tops[:, chunk] = logits[:, chunk * WIDE : (chunk + 1) * WIDE].amax(1)
