"""Positions added to the embedding: sinusoidal (a formula), learned (a table) or axial (several).

Legend: P positions, D model width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.layout import Layout
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
        start = self.config.start
        if bound is None or positions.numel() <= bound:
            return self._vectors(positions + start, dtype)
        rows = torch.arange(start, start + bound, device=positions.device)
        return self._vectors(rows, dtype)[positions]  # each row once, however often it is wanted

    def _vectors(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        c = self.config
        wide = torch.float64 if c.rounded else torch.promote_types(dtype, torch.float32)
        vectors = sinusoid(positions, self.dim, layout=c.layout, base=c.base, dtype=wide)
        return (vectors.type(torch.float32) if c.rounded else vectors).to(dtype)


@implements(config.StoredSinusoids)
class StoredSinusoids(nn.Module):
    """A table of sines and cosines that is stored beside the weights and not trained."""

    first = 0
    weight: Tensor  # P D

    def __init__(self, position: config.StoredSinusoids, dim: int) -> None:
        super().__init__()
        self.config, self.dim = position, dim
        self.register_buffer("weight", torch.empty(position.length, dim))

    def reset_parameters(self) -> None:
        """sin(pos / base^(i/(D/2−1))), then the cosines of the same."""
        half = self.dim // 2
        rates = torch.exp(torch.arange(half) * (-math.log(self.config.base) / (half - 1)))  # D/2
        angle = torch.arange(self.config.length)[:, None] * rates
        self.weight.copy_(torch.cat([angle.sin(), angle.cos()], dim=1))

    def forward(self, positions: Tensor, bound: int | None, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `bound` if that is known) → their vectors."""
        if bound is None or bound > self.config.length:
            check_length(positions, bound, self.config.length, "StoredSinusoids.length")
        return F.embedding(positions, self.weight).to(dtype)


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
        if bound is None or bound > self.config.length:
            check_length(positions, bound, self.config.length, "Learned.length")
        # Where ids are counted, padding has the row before the first: it gets no gradient.
        fixed = self.config.offset - 1 if self.config.count == "ids" else None
        return F.embedding(positions + self.config.offset, self.weight, fixed).to(dtype)


def check_length(positions: Tensor, bound: int | None, length: int, field: str) -> None:
    """Much of a wide grid may be padding: the numbers themselves tell."""
    if torch.compiler.is_compiling():
        if bound is None:
            return  # a caller's own numbers: the table's bounds are checked by the lookup
    elif positions.numel():
        bound = int(positions.max()) + 1
    if bound is not None and bound > length:
        told = f"{field}={length}" if field.endswith("length") else f"{field}, {length} positions"
        another = "lengthen the model (af.lengthen)"
        if field != "Learned.length":
            another = "use a model with Sinusoidal positions"
        raise LengthError(
            f"a sequence of {bound} tokens is longer than the model's {told}; "
            f"shorten or split it, or {another}"
        )


def count_ids(ids: Tensor, pad_id: int) -> Tensor:
    """RoBERTa's numbering, B T: 0, 1, … over the tokens that are not padding; padding has −1."""
    real = (ids != pad_id).long()
    return real.cumsum(-1) * real - 1


@implements(config.Axial)
class Axial(nn.Module):
    """The vectors of a cell's row and column in a grid of positions, side by side."""

    first = 0

    def __init__(self, position: config.Axial, dim: int) -> None:
        super().__init__()
        self.config = position
        for i, (count, width) in enumerate(zip(position.shape, position.dims, strict=True)):
            self.register_parameter(f"axis{i}", nn.Parameter(torch.empty(count, width)))

    def reset_parameters(self) -> None:
        """As every table starts."""
        for table in self.parameters():
            nn.init.normal_(table, std=sum(self.config.dims) ** -0.5)

    def forward(self, positions: Tensor, bound: int | None, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `bound` if that is known) → their vectors."""
        if bound is None or bound > self.config.longest:
            check_length(positions, bound, self.config.longest, "Axial.shape")
        parts = []
        for i in reversed(range(len(self.config.shape))):  # the last axis runs fastest
            count = self.config.shape[i]
            parts.append(F.embedding(positions % count, self.get_parameter(f"axis{i}")))
            positions = positions // count
        return torch.cat(parts[::-1], dim=-1).to(dtype)

    def thin(self, vectors: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Dropout: a column of the grid is dropped for a row of the batch, or it is not."""
        share, columns = self.config.dropout, self.config.shape[-1]
        if not share or not self.training:
            return vectors
        kept = vectors.new_empty(layout.rows, columns).bernoulli_(1 - share) / (1 - share)
        return vectors * kept[layout.row_numbers(vectors.device), positions % columns][..., None]
