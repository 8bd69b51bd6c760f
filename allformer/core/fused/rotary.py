"""Rotary positions on the fused projection in one pass; backward turns the other way.

Legend: N tokens, W width of the fused product, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.fused import ready


def turn_serves(fused: Tensor, cos: Tensor) -> bool:
    """Whether the kernel serves: halves of a power of two."""
    half = cos.shape[-1]
    return ready(fused) and half >= 8 and half & (half - 1) == 0


def turn_fused(fused: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
    """The first `turned` heads of … W, turned by cos φ and sin φ, (…) D/2.

    The plain form is `Attention._turn` by `Turn.turn`.
    """
    flat = fused.reshape(-1, fused.shape[-1])
    apply: Any = _Turn.apply
    out: Tensor = apply(
        flat, cos.reshape(-1, cos.shape[-1]), sin.reshape(-1, sin.shape[-1]), turned
    )
    return out.view(fused.shape)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
        from allformer.core.fused.gpu import rotary

        ctx.save_for_backward(cos, sin)
        ctx.turned = turned
        out: Tensor = rotary.turn(x, cos, sin, turned, False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu import rotary

        return rotary.turn(grads[0], *ctx.saved_tensors, ctx.turned, True), None, None, None
