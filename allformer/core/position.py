"""Positions added to the embedding: sinusoidal (a formula) or learned (a table).

Legend: P positions, D model width.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.registry import implements
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


@implements(config.Sinusoidal)
class Sinusoidal(nn.Module):
    """No parameters, no table, no longest length: the rows needed are computed where needed."""

    first = 0  # the number that a caller has for position 0

    def __init__(self, position: config.Sinusoidal, dim: int) -> None:
        super().__init__()
        self.config, self.dim = position, dim

    def forward(self, positions: Tensor, bound: int | None, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `bound` if that is known) → their vectors."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        c = self.config
        make = partial(sinusoid, dim=self.dim, layout=c.layout, base=c.base, dtype=wide)
        if bound is None or positions.numel() <= bound:
            return make(positions + c.start).to(dtype)
        rows = torch.arange(c.start, c.start + bound, device=positions.device)
        return make(rows).to(dtype)[positions]  # each row once, however often it is wanted


@implements(config.Learned)
class Learned(nn.Module):
    """A trained vector for each position."""

    def __init__(self, position: config.Learned, dim: int) -> None:
        super().__init__()
        self.config = position
        # Where ids are counted (RoBERTa), a caller's numbers are rows of the table.
        self.first = position.offset if position.count == "ids" else 0
        self.weight = nn.Parameter(torch.empty(position.offset + position.length, dim))

    def reset_parameters(self) -> None:
        """As every table starts."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, positions: Tensor, bound: int | None, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `bound` if that is known) → their vectors."""
        length = self.config.length
        if bound is None or bound > length:
            self._check(positions, bound)
        # Where ids are counted, padding has the row before the first: it gets no gradient.
        fixed = self.config.offset - 1 if self.config.count == "ids" else None
        return F.embedding(positions + self.config.offset, self.weight, fixed).to(dtype)

    def _check(self, positions: Tensor, bound: int | None) -> None:
        """Much of a wide grid may be padding: the numbers themselves tell."""
        length = self.config.length
        if torch.compiler.is_compiling():
            if bound is None:
                return  # a caller's own numbers: the table's bounds are checked by the lookup
        elif positions.numel():
            bound = int(positions.max()) + 1
        if bound is not None and bound > length:
            raise LengthError(
                f"a sequence of {bound} tokens is longer than the model's Learned.length={length}; "
                f"shorten or split it, or use a model with Sinusoidal positions"
            )


def count_ids(ids: Tensor, pad_id: int) -> Tensor:
    """RoBERTa's numbering, B T: 0, 1, … over the tokens that are not padding; padding has −1."""
    real = (ids != pad_id).long()
    return real.cumsum(-1) * real - 1
