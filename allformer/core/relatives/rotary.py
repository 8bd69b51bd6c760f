"""Rotary positions: pairs of features of each query and key are turned by an angle.

    (x₁, x₂) → (x₁ cos φ − x₂ sin φ, x₂ cos φ + x₁ sin φ),   φ = position · θ^(−2i/D)

A query at m and a key at n then meet at the angle (m − n): scores depend on distances alone. Pairs
are (i, i + D/2), the two halves of a head, as Hugging Face stores LLaMA; Meta's own files pair
neighbours, which is the same after reordering the rows of W_Q and W_K.

Legend: D head size, H heads, P positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer import config
from allformer.core.fused.rotary import turn_fused, turn_serves
from allformer.core.registry import implements
from allformer.core.relatives.rates import frequencies, gain
from allformer.core.relatives.relative import Relation, Relative


@implements(config.Rotary)
class Rotary(Relative):
    """No parameters; the frequencies are computed where they are needed."""

    def __init__(self, relative: config.Rotary, stack: config.Stack, path: str) -> None:
        super().__init__(relative, stack, path)
        self.size = stack.blocks[0].attention.size(stack.dim)
        self.gain = gain(relative)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        longest = None if self.config.steady else positions.max() + 1
        rates = frequencies(self.config, self.size, positions.device, longest)
        angles = positions[..., None].float() * rates
        cos, sin = (x * self.gain if self.gain != 1.0 else x for x in (angles.cos(), angles.sin()))
        return Turn(cos.to(dtype), sin.to(dtype))


class Turn(Relation):
    """cos φ and sin φ for each token, … D/2."""

    turns = True

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin

    def turn_whole(self, fused: Tensor, turned: int) -> Tensor | None:
        if not turn_serves(fused, self.cos):
            return None
        return turn_fused(fused, self.cos, self.sin, turned)

    def turn(self, heads: Tensor) -> Tensor:
        """… H D → the same, turned."""
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]  # … 1 D/2
        first, second = heads.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
