"""Residual + dropout + norm in one pass forward and one backward.

Legend: N tokens, D features, P programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from allformer.core.fused.gpu.random import keep, keys
from allformer.core.fused.random import threshold

_WARPS = 8  # at most
_PROGRAMS = 2112  # warps in all, when weights' gradients are summed on the way: few partial sums


def _tile(features: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and the warps for it: two rows, a warp for every 512 numbers."""
    columns = triton.next_power_of_2(features)
    rows = 1 if columns > 2048 else max(2, 512 // columns)
    return rows, columns, max(1, min(_WARPS, rows * columns // 512))


def _programs(count: int, features: int) -> int:
    """Of the backward pass: as many partial sums of the weights' gradients."""
    rows, _, warps = _tile(features)
    return min(_PROGRAMS // warps, -(-count // rows))


@triton.jit
def _add_norm(
    x, h, weight, bias, seed, total, y, mean, rstd, count, D, eps,
    ADDS: tl.constexpr, CENTRED: tl.constexpr, SITE: tl.constexpr, THRESHOLD: tl.constexpr,
    UP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = (row < count)[:, None] & (column < D)[None, :]
    begin = tl.program_id(0).to(tl.int64) * ROWS * D
    at = tl.arange(0, ROWS)[:, None] * D + column[None, :]
    x += begin
    y += begin
    if ADDS:
        h += begin
        total += begin
    v = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        more = tl.load(h + at, mask=there, other=0.0).to(tl.float32)
        if THRESHOLD > 0:
            first, second = keys(seed, SITE)
            place = begin.to(tl.uint32) + at.to(tl.uint32)
            more = tl.where(keep(place, first, second, THRESHOLD), more * UP, 0.0)
        v = (v + more).to(total.dtype.element_ty)
        tl.store(total + at, v, mask=there)
        v = v.to(tl.float32)  # what is stored is what is normed: backward reads it again
    if CENTRED:
        middle = tl.sum(v, 1) / D
        v = tl.where(there, v - middle[:, None], 0.0)
        tl.store(mean + row, middle, mask=row < count)
    r = tl.rsqrt(tl.sum(v * v, 1) / D + eps)
    tl.store(rstd + row, r, mask=row < count)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    out = v * r[:, None] * w[None, :]
    if CENTRED:
        out += tl.load(bias + column, mask=column < D, other=0.0).to(tl.float32)[None, :]
    tl.store(y + at, out, mask=there)


@triton.jit
def _add_norm_back(
    dy, dtotal, total, weight, mean, rstd, seed, dx, dh, sums, count, D,
    MORE: tl.constexpr, CENTRED: tl.constexpr, SITE: tl.constexpr, THRESHOLD: tl.constexpr,
    UP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)[None, :]
    sum_w = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_b = tl.zeros([ROWS, COLUMNS], tl.float32)
    tiles = tl.cdiv(count, ROWS)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < count)[:, None] & (column < D)[None, :]
        begin = tl.cast(tile * ROWS, tl.int64) * D  # wide once; within a tile 32 bits are enough
        at = tl.arange(0, ROWS)[:, None] * D + column[None, :]
        v = tl.load(total + begin + at, mask=there, other=0.0).to(tl.float32)
        g = tl.load(dy + begin + at, mask=there, other=0.0).to(tl.float32)
        r = tl.load(rstd + row, mask=row < count, other=0.0)[:, None]
        if CENTRED:
            middle = tl.load(mean + row, mask=row < count, other=0.0)[:, None]
            v = tl.where(there, v - middle, 0.0)
            sum_b += g
        v = v * r
        sum_w += g * v
        g = g * w
        back = g - v * (tl.sum(g * v, 1) / D)[:, None]
        if CENTRED:
            back -= (tl.sum(g, 1) / D)[:, None]
        back = back * r
        if MORE:
            back += tl.load(dtotal + begin + at, mask=there, other=0.0).to(tl.float32)
        tl.store(dx + begin + at, back, mask=there)
        if THRESHOLD > 0:
            first, second = keys(seed, SITE)
            place = begin.to(tl.uint32) + at.to(tl.uint32)
            back = tl.where(keep(place, first, second, THRESHOLD), back * UP, 0.0)
            tl.store(dh + begin + at, back, mask=there)
    if CENTRED:
        at = tl.program_id(0) * 2 * D + column
        tl.store(sums + at + D, tl.sum(sum_b, 0), mask=column < D)
    else:
        at = tl.program_id(0) * D + column
    tl.store(sums + at, tl.sum(sum_w, 0), mask=column < D)


@torch.library.custom_op("allformer::add_norm", mutates_args=())
def add_norm(
    x: Tensor, h: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float,
    seed: Tensor | None, site: int, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x, h N D → x + dropout(h) (empty without h), its norm, mean and 1/σ."""
    x = x.contiguous()
    h = None if h is None else h.contiguous()
    count, D = x.shape
    total = torch.empty_like(x) if h is not None else x.new_empty(0)
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(count, dtype=torch.float32, device=x.device) for _ in range(2))
    rows, columns, warps = _tile(D)
    _add_norm[(triton.cdiv(count, rows),)](
        x, h, weight, bias, seed, total, y, mean, rstd, count, D, eps,
        ADDS=h is not None, CENTRED=bias is not None, SITE=site,
        THRESHOLD=threshold(dropout) if h is not None else 0, UP=1 / (1 - dropout),
        ROWS=rows, COLUMNS=columns, num_warps=warps,
    )  # fmt: skip
    return total, y, mean, rstd


@add_norm.register_fake
def _(x, h, weight, bias, eps, seed, site, dropout):
    one = x.new_empty(x.shape[0], dtype=torch.float32)
    total = torch.empty_like(x) if h is not None else x.new_empty(0)
    return total, torch.empty_like(x), one, torch.empty_like(one)


@torch.library.custom_op("allformer::add_norm_backward", mutates_args=())
def add_norm_backward(
    dy: Tensor, dtotal: Tensor | None, total: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor,
    centred: bool, seed: Tensor | None, site: int, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and h (empty without dropout: the same), and of weight and bias, P 2·D."""
    dy = dy.contiguous()
    dtotal = None if dtotal is None else dtotal.contiguous()
    count, D = total.shape
    rows, columns, warps = _tile(D)
    programs = _programs(count, D)
    dx = torch.empty_like(total)
    dh = torch.empty_like(total) if dropout > 0 else total.new_empty(0)
    sums = total.new_empty(programs, 2 * D if centred else D, dtype=torch.float32)
    _add_norm_back[(programs,)](
        dy, dtotal, total, weight, mean, rstd, seed, dx, dh, sums, count, D,
        MORE=dtotal is not None, CENTRED=centred, SITE=site, THRESHOLD=threshold(dropout),
        UP=1 / (1 - dropout), ROWS=rows, COLUMNS=columns, num_warps=warps,
    )  # fmt: skip
    return dx, dh, sums


@add_norm_backward.register_fake
def _(dy, dtotal, total, weight, mean, rstd, centred, seed, site, dropout):
    programs = _programs(*total.shape)
    dh = torch.empty_like(total) if dropout > 0 else total.new_empty(0)
    wide = total.shape[1] * (2 if centred else 1)
    return torch.empty_like(total), dh, total.new_empty(programs, wide, dtype=torch.float32)
