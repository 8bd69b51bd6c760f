"""A linear layer's numbers as kernels for a few rows read them.

    w[o, i] = scale[o, g]·q[o, i] + least[o, g],   g = i // group        (bits 8 or 4)

Legend: K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.linear import Fused, Linear
from allformer.core.precision import cast
from allformer.core.quantised import Quantised, QuantisedApart, unpack


class Gain(NamedTuple):
    """A norm's numbers; RMS has no bias."""

    weight: Tensor
    bias: Tensor | None
    eps: float


class Matrix(NamedTuple):
    """Weights N K as they stand, or in bytes of `bits` as `Quantised` packs them."""

    weight: Tensor
    bias: Tensor | None = None
    bits: int | None = None
    scale: Tensor | None = None  # N groups
    least: Tensor | None = None

    @property
    def outputs(self) -> int:
        """N"""
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        """K"""
        return self.weight.shape[1] * (2 if self.bits == 4 else 1)

    @property
    def group(self) -> int:
        """How many inputs share a scale."""
        return self.inputs if self.scale is None else self.inputs // self.scale.shape[1]

    def alike(self, other: Matrix) -> bool:
        """Whether one kernel can read both."""
        form, hers = (
            (x.weight.shape, x.bits, x.group, x.least is None, x.bias is None)
            for x in (self, other)
        )
        return form == hers

    @property
    def numbers(self) -> Tensor:
        """What a kernel reads."""
        return self.weight.view(torch.int8) if self.bits == 8 else self.weight

    @property
    def bytes(self) -> int:
        """What is read for a product."""
        parts = (self.weight, self.scale, self.least, self.bias)
        return sum(x.numel() * x.element_size() for x in parts if x is not None)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weights themselves, N K: worked out in fp32 at least, and rounded once."""
        if self.bits is None or self.scale is None:
            return cast(self.weight, dtype)
        wide = torch.promote_types(dtype, torch.float32)
        q = unpack(self.weight, self.bits, signed=self.least is None)
        w = q.to(wide).view(self.outputs, -1, self.group) * self.scale[..., None]  # N groups group
        w = w if self.least is None else w + self.least[..., None]
        return w.flatten(1).to(dtype)


def matrix_of(layer: Any, dtype: torch.dtype) -> Matrix | None:
    """The numbers of a `Linear`, a `Fused` or a `Quantised`; None: something is added to what it
    gives (a delta), or its weights are of another dtype than is computed in."""
    if getattr(layer, "delta", None) is not None:
        return None
    if type(layer) in (Linear, Fused):
        weight = layer.weight.detach()
        plain = weight.dtype == dtype and weight.is_contiguous()
        return Matrix(weight, _addend(layer, dtype)) if plain else None
    if type(layer) is not Quantised:
        return None
    return Matrix(layer.packed, _addend(layer, dtype), layer.bits, layer.scale, layer.least)


def matrices_of(layer: Any, dtype: torch.dtype) -> tuple[Matrix, ...] | None:
    """The same, of projections that may be held each in its own way: they stand side by side."""
    parts = layer.layers.values() if type(layer) is QuantisedApart else (layer,)
    found = [matrix_of(part, dtype) for part in parts]
    whole = tuple(matrix for matrix in found if matrix is not None)
    return whole if len(whole) == len(found) and getattr(layer, "delta", None) is None else None


def _addend(layer: Any, dtype: torch.dtype) -> Tensor | None:
    bias = layer.addend(dtype)
    return None if bias is None else bias.detach()


def gain_of(norm: Any) -> Gain:
    """The numbers of a LayerNorm or an RMSNorm."""
    bias = getattr(norm, "bias", None)
    return Gain(norm.weight.detach(), None if bias is None else bias.detach(), norm.eps)
