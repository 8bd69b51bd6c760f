"""Linear layers that compute in the dtype of their input, and fused ones with named parts.

Master weights may be fp32 while activations run in bf16: each layer casts its weight to the
activation's dtype where it is used (a no-op when they agree). Nothing is decided by a hidden
autocast list.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer.core.matmul import matmul


class Linear(nn.Linear):
    """y = x Wᵀ + b, in x's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return matmul(x, self.weight.to(x.dtype), bias)


class Fused(Linear):
    """Several projections of one input as one matrix product: `Fused(512, q=512, k=64, v=64)`.

    `part("k")` gives the named rows of weight and bias as views, for weight maps and tests.
    """

    def __init__(self, inputs: int, bias: bool, **parts: int) -> None:
        super().__init__(inputs, sum(parts.values()), bias=bias)
        self.parts = parts

    def part(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Views of one projection's weight (rows) and bias."""
        names = list(self.parts)
        start = sum(self.parts[n] for n in names[: names.index(name)])
        rows = slice(start, start + self.parts[name])
        return self.weight[rows], None if self.bias is None else self.bias[rows]

    def cut(self, y: Tensor) -> tuple[Tensor, ...]:
        """What `forward` gave, cut into the parts in order."""
        return torch.split(y, list(self.parts.values()), dim=-1)
