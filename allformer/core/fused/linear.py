"""A linear layer with master weights: cast, product, and gradients that come out in fp32.

    y = linear(x, weight, bias)         # x in bf16, weight and bias in fp32

Autograd would make the gradient in half precision and cast it, and sum the bias's by a kernel that
is slow for tall matrices.

Legend: N tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x … K in half precision, weight M K and bias M in fp32 → … M; where `ready` says so."""
    apply: Any = _Linear.apply
    out: Tensor = apply(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        half = weight.to(x.dtype)
        # A frozen weight wants no input kept, and is there anyway: no copy of it is.
        of_x, of_weight, _ = ctx.needs_input_grad
        again = half if of_weight else weight
        ctx.save_for_backward(x if of_weight else None, again if of_x else None)
        return F.linear(x, half, None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu.columns import column_sums

        (dy,) = grads
        x, again = ctx.saved_tensors
        dy = dy.contiguous()
        dx = dy @ again.to(dy.dtype) if ctx.needs_input_grad[0] else None
        dw = outer(dy, x) if ctx.needs_input_grad[1] else None
        return dx, dw, column_sums(dy) if ctx.needs_input_grad[2] else None


def outer(dy: Tensor, x: Tensor) -> Tensor:
    """dyᵀ x in fp32."""
    if not dy.is_cuda:  # Triton's interpreter
        return dy.t().float() @ x.float()
    return torch.mm(dy.t(), x, out_dtype=torch.float32)
