"""x Wᵀ + b with weights that were looked up once, by whichever product is fastest for the rows.

times = make_product(layer, torch.float32)     # of a Linear or a Fused
times(x)                                       # A M K → A M N
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allformer.core.int8 import Int8, Int8Few
from allformer.core.lean.native import LARGE, ROWS, Few, few_for
from allformer.core.linear import Fused, Linear
from allformer.core.matmul import matmul, onednn_is_faster
from allformer.core.precision import cast

Product = Callable[[Tensor], Tensor]
MANY = 16  # rows from which a product computes more than it reads
WIDE = 1 << 13  # outputs from which oneDNN's own order of the weights is worth a copy
NARROW = 1 << 10  # outputs from which oneDNN's product of bytes is worth a copy
PAYS = 8  # products of many rows after which a copy in oneDNN's order has paid for itself
MOST = 1 << 30  # bytes of weights of which such copies are made: others have no room to spare


class Times:
    """`Times(weight, bias)(x)`: weight N K, bias N or None, all of one dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, copies: bool = True) -> None:
        self.weight, self.bias = weight, bias
        self.few = few_for(weight)
        half = weight.dtype == torch.bfloat16  # of which MKL's product of few rows is slow
        slow = onednn_is_faster() and weight.numel() >= LARGE  # MKL's, of any rows
        self.least = 1 if half else ROWS + 1 if slow else MANY
        self.packs = copies and (half or slow or len(weight) >= WIDE) and _packs(weight)
        self.calls, self.packed = 0, weight

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if self.few is not None and rows <= ROWS:
            return self.few.fp32(x, self.weight, self.bias)
        if self.packs and rows >= self.least:
            return self._many(x)
        return matmul(x, self.weight, self.bias)

    def onto(self, x: Tensor, y: Tensor) -> Tensor:
        """y + x Wᵀ + b."""
        if self.few is not None and x.numel() <= ROWS * x.shape[-1] and y.is_contiguous():
            return self.few.fp32(x, self.weight, self.bias, y)
        return y + self(x)

    def _many(self, x: Tensor) -> Tensor:
        """oneDNN's product, before long from weights in its own order."""
        self.calls += 1
        if self.calls == PAYS:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 2 * MANY)
        if self.calls < PAYS:
            return matmul(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


class Words(Times):
    """h Wᵀ for a whole vocabulary. Without a compiler, of few rows from a copy of W that lies the
    other way round: that is up to a third faster."""

    def __init__(self, weight: Tensor, bias: Tensor | None, copies: bool = True) -> None:
        super().__init__(weight, bias, copies)
        self.turned = weight.t().contiguous() if copies and self.few is None else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.turned is None or x.numel() >= MANY * x.shape[-1]:
            return super().__call__(x)
        y = x @ self.turned
        return y if self.bias is None else y.add_(self.bias)


class Eight:
    """The same in eight bits: `Eight(weight, bias)(x)`, in fp32. For many rows oneDNN's product has
    a copy in its own order. `fine`: a few rows are rounded to sixteen bits, not to eight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, fine: bool = False) -> None:
        self.plain = Int8Few(weight, bias, fine)
        self.weight = self.plain.weight  # N K
        self.sums = self.weight.sum(1, dtype=torch.int32)
        self.few: Few | None = few_for(self.weight)
        self.most = MANY if len(weight) >= NARROW else 2 * MANY  # rows of which few.c is fastest
        self.fine = ROWS if fine else 0  # rows of which the second digit costs next to nothing
        self.many: Int8 | None = None

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if self.few is not None and rows <= self.most:
            return self._few(self.few, x, None)
        return self.plain(x) if rows < MANY else self._many(x)

    def _few(self, few: Few, x: Tensor, add: Tensor | None) -> Tensor:
        p, fine = self.plain, x.numel() <= self.fine * x.shape[-1]
        return few.int8(x, self.weight, p.scale, self.sums, p.bias, add, fine)

    def _many(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if self.many is None:
            self.many = Int8.of(self.weight, self.plain.scale, self.plain.bias, self.few)
        return self.many(x, add)

    def onto(self, x: Tensor, y: Tensor) -> Tensor:
        """y + x Wᵀ + b."""
        if self.few is not None and x.numel() <= self.most * x.shape[-1] and y.is_contiguous():
            return self._few(self.few, x, y)
        return self._many(x, y) if x.numel() >= MANY * x.shape[-1] else y + self(x)


def onto(times: Product, x: Tensor, y: Tensor) -> Tensor:
    """y + times(x), in one call where there is one."""
    return times.onto(x, y) if isinstance(times, Times | Eight) else y + times(x)


def make_product(
    layer: Any, dtype: torch.dtype, int8: bool = False, copies: bool = True, fine: bool = False
) -> Product:
    """The product of a layer; one that is no plain `Linear` (quantised, with a delta) is its own.

    `copies`: weights may be copied into another order where that is faster. `fine`: in eight bits
    its few rows keep sixteen.
    """
    if type(layer) not in (Linear, Fused) or layer.delta is not None:
        own: Product = layer
        return own
    weight, bias = cast(layer.weight.detach(), dtype), layer.addend(dtype)
    bias = None if bias is None else bias.detach()
    return Eight(weight, bias, fine) if int8 else Times(weight, bias, copies)


def _packs(weight: Tensor) -> bool:
    """Whether oneDNN has an order of its own for a matrix."""
    plain = weight.dtype in (torch.float32, torch.bfloat16) and weight.device.type == "cpu"
    return plain and bool(torch._C._has_mkldnn) and torch._C._get_mkldnn_enabled()
