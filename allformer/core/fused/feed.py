"""The feed-forward layer from its first products on: bias, activation, gate, dropout, W₂.

    y = feed_tail(up, gate, feed)            # up = x W₁, gate = x W_g, both without their biases
    h = feed_inner(up, gate, "silu")         # without W₂: of layers that have adapters

What stands between the products is made again in the backward pass, beside its gradient: it is the
largest thing that a layer would keep.

Legend: N tokens, F inner width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.activation import ACT
from allformer.core.fused import ready
from allformer.core.fused.linear import outer
from allformer.core.fused.norm import NOTHING, Thinning

KNOWN = ("relu", "gelu", "gelu_tanh", "silu")  # activations that the kernel has


def feed_serves(x: Tensor, act: str, *weights: Tensor | None) -> bool:
    """Whether the kernel serves."""
    return act in KNOWN and ready(x, *weights)


def feed_tail(
    up: Tensor,
    gate: Tensor | None,
    biases: tuple[Tensor | None, Tensor | None],
    act: str,
    weight: Tensor,
    bias: Tensor | None,
    thinning: Thinning = NOTHING,
) -> Tensor:
    """dropout(act(gate + b_g) ⊙ (up + b₁)) W₂ + b₂; without a gate act(up + b₁): … F → … dim.

    `biases` are those of up and gate; they, `weight` and `bias` are master weights.
    """
    if not feed_serves(up, act, weight):
        inner = thinning(_inner(up, gate, biases, act))
        return F.linear(inner, weight.to(up.dtype), None if bias is None else bias.to(up.dtype))
    apply: Any = _Tail.apply
    flat = up.reshape(-1, up.shape[-1])
    other = None if gate is None else gate.reshape(flat.shape)
    dropout, seed, site = thinning
    out: Tensor = apply(flat, other, *biases, weight, bias, act, seed, site, dropout)
    return out.view(*up.shape[:-1], -1)


def feed_inner(up: Tensor, gate: Tensor | None, act: str, thinning: Thinning = NOTHING) -> Tensor:
    """dropout(act(gate) ⊙ up), or dropout(act(up)), biases included: … F → … F."""
    if not feed_serves(up, act):
        return thinning(_inner(up, gate, (None, None), act))
    apply: Any = _Inner.apply
    flat = up.reshape(-1, up.shape[-1])
    other = None if gate is None else gate.reshape(flat.shape)
    dropout, seed, site = thinning
    out: Tensor = apply(flat, other, act, seed, site, dropout)
    return out.view(up.shape)


def _inner(
    up: Tensor, gate: Tensor | None, biases: tuple[Tensor | None, Tensor | None], act: str
) -> Tensor:
    up_bias, gate_bias = (None if b is None else b.to(up.dtype) for b in biases)
    up = up if up_bias is None else up + up_bias
    if gate is None:
        return ACT[act](up)
    return ACT[act](gate if gate_bias is None else gate + gate_bias) * up


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        up: Tensor,
        gate: Tensor | None,
        act: str,
        seed: Tensor | None,
        site: int,
        dropout: float,
    ) -> Tensor:
        from allformer.core.fused.gpu import feed

        seed = seed if dropout else None
        ctx.save_for_backward(up, gate, seed)
        ctx.act, ctx.site, ctx.dropout = act, site, dropout
        inner: Tensor = feed.feed_inner(up, gate, None, None, act, seed, site, dropout)
        return inner

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu import feed

        up, gate, seed = ctx.saved_tensors
        _, dup, dgate, *_ = feed.feed_inner_backward(
            grads[0], up, gate, None, None, ctx.act, seed, ctx.site, ctx.dropout
        )
        return dup, None if gate is None else dgate, None, None, None, None


class _Tail(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        up: Tensor,
        gate: Tensor | None,
        up_bias: Tensor | None,
        gate_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        act: str,
        seed: Tensor | None,
        site: int,
        dropout: float,
    ) -> Tensor:
        from allformer.core.fused.gpu import feed

        if not dropout:
            seed = None
        inner = feed.feed_inner(up, gate, up_bias, gate_bias, act, seed, site, dropout)
        half = weight.to(up.dtype)
        ctx.save_for_backward(up, gate, up_bias, gate_bias, half, seed)
        ctx.act, ctx.site, ctx.dropout = act, site, dropout
        return F.linear(inner, half, None if bias is None else bias.to(up.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu import feed
        from allformer.core.fused.gpu.columns import column_sums

        (dy,) = grads
        up, gate, up_bias, gate_bias, half, seed = ctx.saved_tensors
        inner, dup, dgate, dup_bias, dgate_bias = feed.feed_inner_backward(
            dy @ half, up, gate, up_bias, gate_bias, ctx.act, seed, ctx.site, ctx.dropout
        )
        return (
            dup,
            None if gate is None else dgate,
            None if up_bias is None else column_sums(dup_bias).to(up_bias.dtype),
            None if gate_bias is None else column_sums(dgate_bias).to(gate_bias.dtype),
            outer(dy, inner) if ctx.needs_input_grad[4] else None,
            column_sums(dy) if ctx.needs_input_grad[5] else None,
            None, None, None, None,
        )  # fmt: skip
