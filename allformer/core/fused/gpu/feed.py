"""Bias + activation (+ gate) + dropout in one pass; backward makes the result again beside the
gradients, so that it need not be kept, and sums the gradients of the biases on the way.

Legend: N tokens, F inner width, P programs along the tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from allformer.core.fused.gpu.random import keep, keys
from allformer.core.fused.random import threshold

ACTS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}
_ROWS, _COLUMNS, _WARPS = 32, 128, 8
PROGRAMS = 1056  # in all: eight for each multiprocessor of a large chip


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    """σ(x) = (1 + tanh(x/2)) / 2; fast, tanh is one instruction, good enough for half precision."""
    if FAST:
        half = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x * 0.5], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 + 0.5 * half
    else:
        return tl.sigmoid(x)


@triton.jit
def _below(x, bell, NARROW: tl.constexpr):
    """Φ(x), with bell = exp(−x²/2).

    For half precision by Abramowitz and Stegun's 7.1.26, to 3e-7: the exponential is there anyway,
    and the error function alone would take longer than the memory that is read and written.
    """
    if NARROW:
        t = 1.0 / (1.0 + 0.231641888 * tl.abs(x))
        series = (1.061405429 * t - 1.453152027) * t + 1.421413741
        tail = 0.5 * ((series * t - 0.284496736) * t + 0.254829592) * t * bell  # Φ(−|x|)
        return tl.where(x < 0.0, tail, 1.0 - tail)
    else:
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _act(x, ACT: tl.constexpr, FAST: tl.constexpr, NARROW: tl.constexpr):
    """The activation and its derivative."""
    if ACT == 0:
        return tl.maximum(x, 0.0), tl.where(x > 0.0, 1.0, 0.0)
    elif ACT == 1:
        bell = tl.exp(-0.5 * x * x)
        below = _below(x, bell, NARROW)
        return x * below, below + x * 0.3989422804014327 * bell
    elif ACT == 2:
        square = x * x
        inner = 1.5957691216057308 * x * (1.0 + 0.044715 * square)  # 2 √(2/π) (x + …)
        s = _sigmoid(inner, FAST)  # (1 + tanh(u)) / 2 = σ(2 u)
        slope = 1.5957691216057308 * (1.0 + 0.134145 * square)
        return x * s, s + x * s * (1.0 - s) * slope
    else:
        s = _sigmoid(x, FAST)
        return x * s, s * (1.0 + x * (1.0 - s))


@triton.jit
def _feed(
    up, gate, up_bias, gate_bias, seed, dinner, inner, dup, dgate, dup_bias, dgate_bias, count, F,
    ACT: tl.constexpr, FAST: tl.constexpr, NARROW: tl.constexpr, GATED: tl.constexpr,
    UP_BIAS: tl.constexpr, GATE_BIAS: tl.constexpr, BACK: tl.constexpr, SITE: tl.constexpr,
    THRESHOLD: tl.constexpr, GROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < F
    sum_up = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    if UP_BIAS:
        b_up = tl.load(up_bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATE_BIAS:
        b_gate = tl.load(gate_bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    for tile in range(tl.program_id(1), tl.cdiv(count, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < count)[:, None] & inside[None, :]
        begin = tl.cast(tile * ROWS, tl.int64) * F  # wide once; within a tile 32 bits are enough
        at = tl.arange(0, ROWS)[:, None] * F + column[None, :]
        u = tl.load(up + begin + at, mask=there, other=0.0).to(tl.float32)
        if UP_BIAS:
            u += b_up
        if GATED:
            g = tl.load(gate + begin + at, mask=there, other=0.0).to(tl.float32)
            if GATE_BIAS:
                g += b_gate
            a, slope = _act(g, ACT, FAST, NARROW)
            out = a * u
        else:
            out, slope = _act(u, ACT, FAST, NARROW)
        if THRESHOLD > 0:
            first, second = keys(seed, SITE)
            kept = keep(begin.to(tl.uint32) + at.to(tl.uint32), first, second, THRESHOLD)
            out = tl.where(kept, out * GROW, 0.0)
        tl.store(inner + begin + at, out, mask=there)
        if BACK:
            d = tl.load(dinner + begin + at, mask=there, other=0.0).to(tl.float32)
            if THRESHOLD > 0:
                d = tl.where(kept, d * GROW, 0.0)
            if GATED:
                back = d * u * slope
                tl.store(dgate + begin + at, back, mask=there)
                if GATE_BIAS:
                    sum_gate += tl.where(there, back, 0.0)
                d = d * a
            else:
                d = d * slope
            tl.store(dup + begin + at, d, mask=there)
            if UP_BIAS:
                sum_up += tl.where(there, d, 0.0)
    if BACK:
        at = tl.program_id(1) * F + column
        if UP_BIAS:
            tl.store(dup_bias + at, tl.sum(sum_up, 0), mask=inside)
        if GATE_BIAS:
            tl.store(dgate_bias + at, tl.sum(sum_gate, 0), mask=inside)


def _programs(count: int, width: int) -> int:
    """Along the tokens: each sums its part of the biases' gradients."""
    return max(1, min(PROGRAMS // -(-width // _COLUMNS), -(-count // _ROWS)))


def _launch(up, gate, up_bias, gate_bias, seed, tensors, act, site, dropout, back):
    count, width = up.shape
    programs = _programs(count, width) if back else -(-count // _ROWS)
    narrow = up.dtype != torch.float32
    _feed[(-(-width // _COLUMNS), programs)](
        up, gate, up_bias, gate_bias, seed, *tensors, count, width,
        ACT=ACTS[act], FAST=up.is_cuda and narrow, NARROW=narrow, GATED=gate is not None,
        UP_BIAS=up_bias is not None, GATE_BIAS=gate_bias is not None, BACK=back, SITE=site,
        THRESHOLD=threshold(dropout), GROW=1 / (1 - dropout), ROWS=_ROWS, COLUMNS=_COLUMNS,
        num_warps=_WARPS,
    )  # fmt: skip


@torch.library.custom_op("allformer::feed_inner", mutates_args=())
def feed_inner(
    up: Tensor, gate: Tensor | None, up_bias: Tensor | None, gate_bias: Tensor | None,
    act: str, seed: Tensor | None, site: int, dropout: float,
) -> Tensor:  # fmt: skip
    """dropout(act(up + b)), or dropout(act(gate + b) ⊙ (up + b)): N F."""
    up = up.contiguous()
    gate = None if gate is None else gate.contiguous()
    inner = torch.empty_like(up)
    outs = (None, inner, None, None, None, None)
    _launch(up, gate, up_bias, gate_bias, seed, outs, act, site, dropout, False)
    return inner


@feed_inner.register_fake
def _(up, gate, up_bias, gate_bias, act, seed, site, dropout):
    return torch.empty_like(up)


@torch.library.custom_op("allformer::feed_inner_backward", mutates_args=())
def feed_inner_backward(
    dinner: Tensor, up: Tensor, gate: Tensor | None, up_bias: Tensor | None,
    gate_bias: Tensor | None, act: str, seed: Tensor | None, site: int, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The inner values again, the gradients of up and gate, and of their biases (P F each)."""
    up, dinner = up.contiguous(), dinner.contiguous()
    gate = None if gate is None else gate.contiguous()
    outs = _outputs(up, gate, up_bias, gate_bias)
    _launch(up, gate, up_bias, gate_bias, seed, (dinner, *outs), act, site, dropout, True)
    return outs


@feed_inner_backward.register_fake
def _(dinner, up, gate, up_bias, gate_bias, act, seed, site, dropout):
    return _outputs(up, gate, up_bias, gate_bias)


def _outputs(up, gate, up_bias, gate_bias):
    none = up.new_empty(0)
    programs = _programs(*up.shape)
    sums = [
        none if b is None else up.new_empty(programs, up.shape[1], dtype=torch.float32)
        for b in (up_bias, gate_bias)
    ]
    dgate = none if gate is None else torch.empty_like(up)
    # Outputs of an operator must not share memory: an empty tensor each.
    sums = [s if s.numel() else up.new_empty(0) for s in sums]
    return torch.empty_like(up), torch.empty_like(up), dgate, sums[0], sums[1]
