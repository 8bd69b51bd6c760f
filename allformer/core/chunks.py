"""Rows cut into chunks that look at themselves and at their neighbours: never T × T.

Legend: B rows, H heads, C chunks, c length of a chunk, w keys that a chunk looks at, D head size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.layout import Grid, Packed
from allformer.core.precision import widen

if TYPE_CHECKING:
    from allformer.core.mixers.mixer import Scene

ALONE = {torch.float16: -1e3}  # the score of a query with itself, which counts when nothing else is
HIDDEN = {torch.float16: -1e4}  # the score of what may not be looked at


class Ring(NamedTuple):
    """How rows are cut: `length` tokens, filled up, in chunks of `size` that stand in a ring, each
    with `before` chunks before it and `after` behind. `keep` (B length) is False at padding."""

    length: int
    size: int
    before: int
    after: int
    keep: Tensor | None = None
    causal: bool = False

    def cut(self, x: Tensor) -> Tensor:
        """… n D (or … n) → … C c D, n a multiple of the chunk; the third axis is cut."""
        return x.view(*x.shape[:2], -1, self.size, *x.shape[3:])

    def fill(self, x: Tensor) -> Tensor:
        """B H T D → B H length D."""
        extra = self.length - x.shape[2]
        return F.pad(x, (0, 0, 0, extra)) if extra else x

    def look(self, x: Tensor) -> Tensor:
        """B H C c … → B H C w …: each chunk with its neighbours.

        As the reference has it: a neighbour as far away as there are chunks, or further, is the
        chunk itself; of fewer chunks than neighbours some are there twice.
        """
        if not self.before and not self.after:
            return x
        reach = range(-self.before, self.after + 1)
        moves = [i if abs(i) < x.shape[2] else 0 for i in reach]
        return torch.cat([x.roll(-i, 2) if i else x for i in moves], dim=3)

    def hidden(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Which keys (at places `key`, B H C w) a query (at `query`, B H C c) may not look at,
        B H C c w; None: it may look at all."""
        ahead = query[..., None] < key[..., None, :] if self.causal else None
        if self.keep is None:
            return ahead
        rows, heads = max(self.keep.shape[0], key.shape[0]), key.shape[1]
        keep = self.keep[:, None].expand(rows, heads, -1)
        there = keep.gather(2, key.expand(rows, -1, -1, -1).flatten(2)).view(rows, *key.shape[1:])
        gone = ~there[..., None, :]
        return gone if ahead is None else gone | ahead


def ring(scene: Scene, chunk: int, before: int, after: int) -> Ring:
    """How the rows of a scene are cut; those that fit into one chunk look at all of themselves.

    All mixers of a stack fill rows up to the same length, as they number them alike.
    """
    layout = scene.query
    width = layout.total if isinstance(layout, Packed) else layout.width
    length = filled(width, scene.chunks or (chunk,))
    keep = layout.keep
    if length > width:
        if keep is None:
            keep = torch.ones(1, width, dtype=torch.bool, device=scene.device)
        keep = F.pad(keep, (0, length - width))
    if length <= chunk:
        chunk, before, after = length, 0, 0
    return Ring(length, chunk, before, after, keep, scene.causal)


def filled(width: int, chunks: tuple[int, ...]) -> int:
    """How long rows become: `filled(100, (32, 48))` is 192. What fits the shortest stays."""
    if width <= min(chunks):
        return width
    multiple = math.lcm(*chunks)
    return -(-width // multiple) * multiple


def weigh(scores: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(scores), and the logarithm of what it divides by, both with gradients."""
    weights, total = _weigh(scores)
    return weights, total


class _Weigh(torch.autograd.Function):
    """Keeps the weights alone: autograd would keep the scores beside them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
        wide = widen(scores)
        most = wide.amax(-1, keepdim=True)
        weights = (wide - most).exp_()
        total = most + weights.sum(-1, keepdim=True).log()
        # exp(scores − total), with one exponential: where all is hidden, the sum −1e9 + log n is
        # rounded, and the weights are as transformers has them.
        weights = weights.mul_((most - total).exp_()).to(scores.dtype)
        ctx.save_for_backward(weights)
        return weights, total.squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (weights,), (d_weights, d_total) = ctx.saved_tensors, grads
        inner = (d_weights * weights).sum(-1, keepdim=True)
        return (d_weights - inner + d_total[..., None].to(weights.dtype)) * weights


_weigh: Any = _Weigh.apply


def past_of(layout: Grid | Packed) -> int | Tensor:
    """How many tokens came before."""
    return 0 if isinstance(layout, Packed) else layout.past
