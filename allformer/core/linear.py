"""Linear layers that compute in the dtype of their input, and fused ones with named parts.

Master weights may be fp32 while activations run in bf16: each layer casts its weight to the
activation's dtype where it is used (a no-op when they agree). Nothing is decided by a hidden
autocast list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.fused import ready
from allformer.core.fused.linear import linear
from allformer.core.matmul import matmul
from allformer.core.precision import cast

Delta = Callable[[Tensor, Tensor], Tensor]


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b in x's dtype, from weights that may be wider."""
    if x.is_cuda and weight.dtype == torch.float32 and ready(x, weight, bias):
        return linear(x, weight, bias)
    return matmul(x, cast(weight, x.dtype), None if bias is None else cast(bias, x.dtype))


class Around(nn.Module):
    """A delta that asks the layer itself, for what must change the input or read the matrix."""

    draws = False  # whether it draws from torch's generator in training

    def around(self, layer: Any, x: Tensor) -> Tensor:
        """What the layer is to give: `layer.bare(x)` is what it gives without a delta."""
        raise NotImplementedError


def changed(layer: Any, x: Tensor) -> Tensor:
    """What a layer that has a delta gives."""
    delta = layer.delta
    if isinstance(delta, Around):
        return delta.around(layer, x)
    y: Tensor = delta(x, layer.bare(x))
    return y


class Linear(nn.Linear):
    """y = x Wᵀ + b, in x's dtype.

    `delta(x, y)` may change the result (LoRA: y + x A B), or do more (`Around`). A quantised layer
    takes this one's place under its name, with a product of its own.
    """

    decays = ("weight",)

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.delta: Delta | None = None

    def reset_parameters(self) -> None:
        """The matrix Glorot-uniform, the bias zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.bare(x) if self.delta is None else changed(self, x)

    def bare(self, x: Tensor) -> Tensor:
        """The product alone, without the delta."""
        return product(x, self.weight, self.addend(self.weight.dtype))

    def addend(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to each output."""
        bias = self.bias
        return None if bias is None else cast(bias, dtype)


class Parts:
    """Several projections of one input, one behind the other in what a layer gives.

    Of a layer with `parts` (name → outputs), a `bias` that has rows for those `biased` alone, and
    a `delta`: a fused one, or a quantised one in its place.
    """

    parts: dict[str, int]
    biased: tuple[str, ...]
    bias: Any  # a parameter, or None
    delta: Delta | None

    def addend(self, dtype: torch.dtype) -> Tensor | None:
        """The bias, with zeros for the parts that have none."""
        bias: Tensor | None = self.bias
        if bias is None or len(self.biased) == len(self.parts):
            return None if bias is None else cast(bias, dtype)
        sizes = self.parts.items()
        rows = (self.bias_of(name) for name in self.parts)
        full = [
            bias.new_zeros(n) if r is None else r for r, (_, n) in zip(rows, sizes, strict=True)
        ]
        return torch.cat(full).to(dtype)

    def bias_of(self, name: str) -> Tensor | None:
        """A view of one projection's bias."""
        if self.bias is None or name not in self.biased:
            return None
        bias: Tensor = self.bias[self.rows(name, self.biased)]
        return bias

    def cut(self, y: Tensor) -> tuple[Tensor, ...]:
        """What `forward` gave, cut into the parts in order."""
        return torch.split(y, list(self.parts.values()), dim=-1)

    def only(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Some of the projections alone: `k, v = fused.only(before, "k", "v")`."""
        if self.delta is not None:  # it knows all of them only
            whole = dict(zip(self.parts, self.cut(self(x)), strict=True))  # type: ignore[operator]
            return tuple(whole[name] for name in names)
        parts = [self.part(name) for name in names]
        return tuple(product(x, weight, bias) for weight, bias in parts)

    def part(self, name: str) -> tuple[Tensor, Tensor | None]:
        """One projection's weight (rows) and bias."""
        raise NotImplementedError

    def rows(self, name: str, among: tuple[str, ...] | None = None) -> slice:
        """Which outputs a projection has, or which rows `among` others."""
        names = tuple(self.parts) if among is None else among
        start = sum(self.parts[n] for n in names[: names.index(name)])
        return slice(start, start + self.parts[name])


class Fused(Parts, Linear):
    """Several projections of one input as one matrix product: `Fused(512, True, q=512, k=64)`.

    `part("k")` gives the named rows of weight and bias as views, for weight maps, tests and a
    delta on one part. `bias` may name the parts that have one: the others have no rows in it.
    """

    def __init__(self, inputs: int, bias: bool | tuple[str, ...], **parts: int) -> None:
        self.parts = parts
        self.biased = tuple(p for p in parts if bias is True or (bias and p in bias))
        super().__init__(inputs, sum(parts.values()), bias=self.biased == tuple(parts))
        if self.biased and self.bias is None:
            rows = sum(parts[name] for name in self.biased)
            self.bias = nn.Parameter(torch.zeros(rows))

    def reset_parameters(self) -> None:
        """Part by part: a bound must come from one projection's size, not from all together."""
        for name in self.parts:
            nn.init.xavier_uniform_(self.weight[self.rows(name)])
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def part(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Views of one projection's weight (rows) and bias."""
        return self.weight[self.rows(name)], self.bias_of(name)
