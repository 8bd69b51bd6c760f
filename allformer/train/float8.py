"""The products of layers in float8: e4m3 forwards, e5m2 for gradients, one scale for each tensor.

M rows (tokens), K inputs, N outputs of a layer. A tensor is divided by its largest number, so that
this one is the largest of the format; the scale is worked out anew each time, on the device.
Embeddings, norms, attention itself and heads stay as they are, and so do the weights kept (fp32).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.core.block import Block
from allformer.core.linear import Fused, Linear
from allformer.core.precision import cast
from allformer.errors import ConfigError

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # of which the kernel wants the sizes of its second factor to be


def use_float8(model: nn.Module) -> int:
    """Let the layers' products be in float8 from now on; how many there are.

    Names, weights and what is saved stay the same. A product whose sizes are no multiples of 16
    stays as it is; where that is all of them, it is an error.
    """
    inside: dict[Linear, None] = {
        part: None
        for block in model.modules()
        if isinstance(block, Block)
        for part in block.modules()
        if isinstance(part, Linear) and type(part) in _KINDS
    }
    fit = [p for p in inside if not (p.in_features % MULTIPLE or p.out_features % MULTIPLE)]
    if not fit:
        raise ConfigError(
            f"train.precision=fp8 wants layers whose sizes are multiples of {MULTIPLE}, and this "
            f"model has none; try another dim and width, or bf16"
        )
    for part in fit:
        # The parameters themselves must stay: an optimiser, a sharding plan may hold them.
        part.__class__ = _KINDS[type(part)]
    return len(fit)


class _Product(Linear):
    """Linear's, but for the product."""

    def bare(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = Float8Product.apply(rows, self.weight)  # type: ignore[no-untyped-call]
        y = y.view(*x.shape[:-1], -1)
        bias = self.addend(x.dtype)
        return y if bias is None else y + bias


class Float8Linear(_Product, Linear):
    """y = x Wᵀ + b with a product in float8."""


class Float8Fused(_Product, Fused):
    """Several projections at once, likewise; some of them alone (`only`) are not in float8."""


_KINDS: dict[type, type] = {Linear: Float8Linear, Fused: Float8Fused}


class Float8Product(torch.autograd.Function):
    """x M K, w N K → x wᵀ M N in x's dtype; what is kept for the gradient is float8 too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        xq, xs = to_float8(x, FORWARD)
        wq, ws = to_float8(w, FORWARD)
        ctx.save_for_backward(xq, xs, wq, ws)
        ctx.dtypes = x.dtype, w.dtype
        return torch._scaled_mm(xq, wq.t(), xs, ws, out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        xq, xs, wq, ws = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        gq, gs = to_float8(grads[0], BACKWARD)
        gx = gw = None
        if ctx.needs_input_grad[0]:  # g w: M N · N K
            gx = torch._scaled_mm(gq, _by_columns(wq), gs, ws, out_dtype=x_dtype)
        if ctx.needs_input_grad[1]:  # gᵀ x: N M · M K
            turned = _padded(gq).t().contiguous()
            gw = torch._scaled_mm(turned, _by_columns(_padded(xq)), gs, xs, out_dtype=w_dtype)
        return gx, gw


def to_float8(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """`q, scale = to_float8(x, torch.float8_e4m3fn)`: x ≈ q · scale."""
    wide = cast(x, torch.float32)
    largest = torch.finfo(kind).max
    scale = (wide.abs().amax() / largest).clamp_min(torch.finfo(torch.float32).tiny)
    return (wide / scale).clamp(-largest, largest).to(kind), scale


def _by_columns(x: Tensor) -> Tensor:
    """The same matrix, its columns one after the other: how the kernel wants its second factor."""
    return x.t().contiguous().t()


def _padded(x: Tensor) -> Tensor:
    """Rows of zeros up to a multiple of 16: over the rows is summed."""
    missing = -len(x) % MULTIPLE
    # As bytes, for padding knows no float8; the byte 0 is 0.0 in both formats.
    return F.pad(x.view(torch.uint8), (0, 0, 0, missing)).view(x.dtype) if missing else x
