"""x + dropout(h) and its norm: what stands between two sub-layers.

    total, y = add_norm(x, h, norm)          # pre-norm: y = norm(total), total = x + dropout(h)
    y = norm_of_sum(x, h, norm)              # post-norm: the sum itself is not needed again

Legend: N tokens, D features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from allformer.core.fused import ready
from allformer.core.fused.random import thin


class Thinning(NamedTuple):
    """How much is dropped, and which: the mask is a function of (seed, site)."""

    dropout: float = 0.0
    seed: Tensor | None = None
    site: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Dropout by the plain form."""
        if not self.dropout:
            return x
        assert self.seed is not None
        return thin(x, self.seed, self.site, self.dropout)


NOTHING = Thinning()


def add_norm(
    x: Tensor, h: Tensor, norm: nn.Module, thinning: Thinning = NOTHING
) -> tuple[Tensor, Tensor]:
    """x and h … D → x + dropout(h), and its norm."""
    if not _serves(x, norm):
        total = x + thinning(h)
        return total, norm(total)
    total, y = _run(x, h, norm, thinning, True)
    return total.view(x.shape), y.view(x.shape)


def norm_of_sum(
    x: Tensor, h: Tensor | None, norm: nn.Module, thinning: Thinning = NOTHING
) -> Tensor:
    """norm(x + dropout(h)), … D; without h the norm of x."""
    if not _serves(x, norm):
        out: Tensor = norm(x if h is None else x + thinning(h))
        return out
    y: Tensor = _run(x, h, norm, thinning, False)
    return y.view(x.shape)


def _serves(x: Tensor, norm: nn.Module) -> bool:
    return ready(x, norm.weight, getattr(norm, "bias", None))  # type: ignore[arg-type]


def _run(x: Tensor, h: Tensor | None, norm: nn.Module, thinning: Thinning, both: bool) -> Any:
    apply: Any = _AddNorm.apply
    flat = x.reshape(-1, x.shape[-1])
    more = None if h is None else h.reshape(flat.shape)
    bias = getattr(norm, "bias", None)
    dropout, seed, site = thinning
    return apply(flat, more, norm.weight, bias, norm.eps, seed, site, dropout, both)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        seed: Tensor | None,
        site: int,
        dropout: float,
        both: bool,
    ) -> Any:
        from allformer.core.fused.gpu import norm

        if not dropout:
            seed = None
        total, y, mean, rstd = norm.add_norm(x, h, weight, bias, eps, seed, site, dropout)
        ctx.adds, ctx.both, ctx.centred = h is not None, both, bias is not None
        ctx.site, ctx.dropout = site, dropout if ctx.adds else 0.0
        ctx.save_for_backward(total if ctx.adds else x, weight, mean, rstd, seed)
        return (total, y) if both else y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu import norm
        from allformer.core.fused.gpu.columns import column_sums

        total, weight, mean, rstd, seed = ctx.saved_tensors
        dtotal = grads[0] if ctx.both else None
        dx, dh, sums = norm.add_norm_backward(
            grads[-1], dtotal, total, weight, mean, rstd, ctx.centred, seed, ctx.site, ctx.dropout
        )
        of_h = None
        if ctx.adds:
            of_h = dh if ctx.dropout > 0 else dx
        if not any(ctx.needs_input_grad[2:4]):  # frozen
            return dx, of_h, None, None, None, None, None, None, None
        of_weight, of_bias = column_sums(sums).to(weight.dtype), None
        if ctx.centred:
            of_weight, of_bias = of_weight.chunk(2)
        return dx, of_h, of_weight, of_bias, None, None, None, None, None
