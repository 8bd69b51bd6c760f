"""Rotary positions: pairs of features of each query and key are turned by an angle.

    (x₁, x₂) → (x₁ cos φ − x₂ sin φ, x₂ cos φ + x₁ sin φ),   φ = position · θ^(−2i/D)

A query at m and a key at n then meet at the angle (m − n): scores depend on distances alone. Pairs
are (i, i + D/2), the two halves of a head, as Hugging Face stores LLaMA; Meta's own files pair
neighbours, which is the same after reordering the rows of W_Q and W_K.

Legend: D head size, H heads, P positions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from allformer import config


class Turn(NamedTuple):
    """cos φ and sin φ for each token, … D/2."""

    cos: Tensor
    sin: Tensor


def frequencies(rotary: config.Rotary, size: int, device: torch.device | None = None) -> Tensor:
    """θ^(−2i/D), scaled: D/2, in fp32 as every published model was trained."""
    steps = torch.arange(0, size, 2, dtype=torch.float32, device=device)
    plain = 1.0 / (rotary.theta ** (steps / size))
    scaling = rotary.scaling
    if isinstance(scaling, config.LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, config.Llama3Scaling):
        turns = scaling.length / (2 * math.pi / plain)  # within the length of pre-training
        slow = plain / scaling.factor
        ramp = (turns - scaling.low) / (scaling.high - scaling.low)
        ramped = (1 - ramp) * slow + ramp * plain
        return torch.where(
            turns > scaling.high, plain, torch.where(turns < scaling.low, slow, ramped)
        )
    return plain


class RotaryPosition(nn.Module):
    """No parameters; the frequencies are computed where they are needed."""

    def __init__(self, rotary: config.Rotary, size: int) -> None:
        super().__init__()
        self.config, self.size = rotary, size

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        """`positions` of any shape → their cosines and sines, … D/2, in `dtype`."""
        rates = frequencies(self.config, self.size, positions.device)
        angles = positions[..., None].float() * rates
        return Turn(angles.cos().to(dtype), angles.sin().to(dtype))


def turn(x: Tensor, angles: Turn) -> Tensor:
    """x … H D, angles … D/2 → x turned."""
    cos, sin = angles.cos[..., None, :], angles.sin[..., None, :]  # … 1 D/2
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
