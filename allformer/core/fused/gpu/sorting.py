"""Rows of tokens to other places, the rounds of hashing merged, and the bucket of a token.

Legend: B rows, H heads, R rounds, L places of a round, T tokens, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _WARPS = 32, 4


@triton.jit
def _pick(
    x, order, out, H, R, L, by_b, by_h, by_r, by_l,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    each = tl.program_id(1).to(tl.int64)
    b, h, r = each // (H * R), (each // R) % H, each % R
    d = tl.arange(0, WIDE)
    there = i < L
    at = tl.load(order + each * L + i, mask=there, other=0).to(tl.int64)
    inside = there[:, None] & (d < D)[None, :]
    rows = tl.load(
        x + b * by_b + h * by_h + r * by_r + at[:, None] * by_l + d[None, :], mask=inside, other=0.0
    )
    tl.store(out + (each * L + i)[:, None] * D + d[None, :], rows, mask=inside)


def pick(x: Tensor, order: Tensor) -> Tensor:
    """x B H R L D (any strides, D together), order B H R L → the rows `order` names, like x."""
    batch, heads, rounds, length, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _pick[(triton.cdiv(length, _ROWS), batch * heads * rounds)](
        x, order, out, heads, rounds, length, *x.stride()[:4],
        D=size, WIDE=triton.next_power_of_2(size), ROWS=_ROWS, num_warps=_WARPS,
    )  # fmt: skip
    return out


@triton.jit
def _merge(
    context, total, back, out, H, R, L, T, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr
):
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bh = tl.program_id(1).to(tl.int64)
    there = t < T
    d = tl.arange(0, WIDE)
    inside = there[:, None] & (d < D)[None, :]
    most = tl.full([ROWS], float("-inf"), tl.float32)
    for r in range(R):
        first = (bh * R + r) * L
        at = tl.load(back + first + t, mask=there, other=0)
        most = tl.maximum(most, tl.load(total + first + at).to(tl.float32))
    above = tl.zeros([ROWS, WIDE], tl.float32)
    below = tl.zeros([ROWS], tl.float32)
    for r in range(R):
        first = (bh * R + r) * L
        at = tl.load(back + first + t, mask=there, other=0)
        share = tl.exp(tl.load(total + first + at).to(tl.float32) - most)
        row = tl.load(context + (first + at)[:, None] * D + d[None, :], mask=inside, other=0.0)
        above += share[:, None] * row.to(tl.float32)
        below += share
    place = ((bh // H) * T + t)[:, None] * (H * D) + (bh % H) * D + d[None, :]
    merged = above / below[:, None]
    tl.store(out + place, merged.to(out.dtype.element_ty), mask=inside)


def merge(context: Tensor, total: Tensor, back: Tensor, width: int) -> Tensor:
    """context B H R L D in order, total B H R L, back B H R L: where each token has gone → what the
    first `width` tokens have seen in all rounds, B H T D with the heads of a token together."""
    batch, heads, rounds, length, size = context.shape
    out = torch.empty(batch, width, heads, size, dtype=context.dtype, device=context.device)
    _merge[(triton.cdiv(width, _ROWS), batch * heads)](
        context, total, back, out, heads, rounds, length, width,
        D=size, WIDE=triton.next_power_of_2(size), ROWS=_ROWS, num_warps=_WARPS,
    )  # fmt: skip
    return out.transpose(1, 2)


@triton.jit
def _farthest(x, out, N, step, n, WIDE: tl.constexpr, ROWS: tl.constexpr):
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    j = tl.arange(0, WIDE)
    real = (j < n)[None, :]
    inside = (i < N)[:, None] & real
    v = tl.load(x + i[:, None] * step + j[None, :], mask=inside, other=0.0).to(tl.float32)
    high, low = tl.where(real, v, float("-inf")), tl.where(real, v, float("inf"))
    up = tl.max(high, 1) >= -tl.min(low, 1)
    found = tl.where(up, tl.argmax(high, 1), n + tl.argmin(low, 1))
    tl.store(out + i, found.to(tl.int64), mask=i < N)


def farthest(x: Tensor) -> Tensor:
    """argmax([x; −x]) of x … n, whose rows are `x.stride(-2)` apart → …"""
    out = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
    wide = triton.next_power_of_2(x.shape[-1])
    rows = max(1, min(16, 4096 // wide))
    _farthest[(triton.cdiv(out.numel(), rows),)](
        x, out, out.numel(), x.stride(-2), x.shape[-1], WIDE=wide, ROWS=rows, num_warps=_WARPS
    )
    return out
