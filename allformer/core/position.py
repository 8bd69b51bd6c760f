"""Positions added to the embedding: sinusoidal (a formula) or learned (a table).

Legend: P positions, D model width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.errors import LengthError


def sinusoid(
    positions: Tensor,
    dim: int,
    *,
    layout: str = "interleaved",
    base: float = 10_000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i+1) = cos(pos / base^(2i/D)).

        sinusoid(torch.arange(50), 512)    # 50 512

    The divisor is computed as exp(−2i/D · ln base), one of three equal ways (see `divisors`).
    `layout="halves"` puts all sines before all cosines.
    """
    inverse = torch.exp(
        torch.arange(0, dim, 2, device=positions.device, dtype=dtype) * (-math.log(base) / dim)
    )  # D/2: the exponent is 2i/D; note that arange(0, D, 2) already *is* 2i
    angle = positions.to(dtype)[..., None] * inverse  # P D/2
    parts = [angle.sin(), angle.cos()]
    if layout == "halves":
        return torch.cat(parts, dim=-1)  # P D
    return torch.stack(parts, dim=-1).flatten(-2)  # P D, sine and cosine alternate


def divisors(dim: int, base: float = 10_000.0) -> dict[str, Tensor]:
    """The same D/2 divisors base^(2i/D), written in the three ways one meets them in code."""
    two_i = torch.arange(0, dim, 2, dtype=torch.float64)
    return {
        "exp-log": torch.exp(two_i * (math.log(base) / dim)),
        "pow": torch.pow(torch.tensor(base, dtype=torch.float64), two_i / dim),
        "**": base ** (two_i / dim),
    }


class SinusoidalPosition(nn.Module):
    """No parameters, no table, no longest length: the rows needed are computed where needed."""

    def __init__(self, position: config.Sinusoidal, dim: int) -> None:
        super().__init__()
        self.config, self.dim = position, dim

    def forward(self, positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `width`) → their vectors in `dtype`."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        c = self.config
        rows = torch.arange(c.start, c.start + width, device=positions.device)
        table = sinusoid(rows, self.dim, layout=c.layout, base=c.base, dtype=wide)  # P D
        return table.to(dtype)[positions]


class LearnedPosition(nn.Module):
    """A trained vector for each position."""

    def __init__(self, position: config.Learned, dim: int) -> None:
        super().__init__()
        self.config = position
        self.weight = nn.Parameter(torch.empty(position.offset + position.length, dim))

    def forward(self, positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `width`) → their vectors in `dtype`."""
        length = self.config.length
        if width > length and not torch.compiler.is_compiling():
            width = int(positions.max()) + 1  # much of a wide grid may be padding
        if width > length:
            raise LengthError(
                f"a sequence of {width} tokens is longer than the model's Learned.length={length}; "
                f"shorten or split it, or use a model with Sinusoidal positions"
            )
        # Where ids are counted, padding has the row before the first: it gets no gradient.
        fixed = self.config.offset - 1 if self.config.count == "ids" else None
        return F.embedding(positions + self.config.offset, self.weight, fixed).to(dtype)


def count_ids(ids: Tensor, pad_id: int) -> Tensor:
    """RoBERTa's numbering, B T: 0, 1, … over the tokens that are not padding; padding has −1."""
    real = (ids != pad_id).long()
    return real.cumsum(-1) * real - 1


def make_position(position: config.Position, dim: int) -> SinusoidalPosition | LearnedPosition:
    """The module for a `position` slot."""
    if isinstance(position, config.Learned):
        return LearnedPosition(position, dim)
    assert isinstance(position, config.Sinusoidal)
    return SinusoidalPosition(position, dim)
