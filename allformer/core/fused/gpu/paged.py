"""Attention of one query in each row over keys and values that lie in pages, read where they lie.

A program takes one row, one key/value head with all queries that share it, and a part of the keys,
and carries the softmax along as it goes (Milakov and Gimelshein, 2018); parts are joined behind.

Legend: R rows, H heads, G key/value heads, D head size, P pages of a row, S parts of the keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64  # keys at a time
_PROGRAMS = 264  # two for each multiprocessor of an H200: with fewer, memory idles


@triton.jit
def _attend_alone(
    q, keys, values, table, lengths, out, peaks, totals, scale, columns,
    HEADS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    PAGE: tl.constexpr, PARTS: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Each query has a key head of its own."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    low, high = _span(lengths, row, part, PARTS, REACH)
    d = tl.arange(0, WIDE)
    query = row * HEADS + head
    x = tl.load(q + query * D + d, mask=d < D, other=0.0).to(tl.float32) * scale
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([WIDE], tl.float32)
    for begin in range(low, high, BLOCK):
        at, there = _tile(table, row, begin, high, columns, HEADS, head, d, D, BLOCK, PAGE)
        k = tl.load(keys + at, mask=there, other=0.0)
        v = tl.load(values + at, mask=there, other=0.0)  # both are on their way at once
        scores = tl.sum(x[None, :] * k.to(tl.float32), 1)
        scores = tl.where(begin + tl.arange(0, BLOCK) < high, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 0))
        shrink, p = tl.exp(peak - higher), tl.exp(scores - higher)
        acc = acc * shrink + tl.sum(p[:, None] * v.to(tl.float32), 0)
        total = total * shrink + tl.sum(p, 0)
        peak = higher
    where = query * PARTS + part
    if PARTS == 1:
        tl.store(out + query * D + d, acc / total, mask=d < D)
    else:
        tl.store(out + where * D + d, acc, mask=d < D)
        tl.store(peaks + where, peak)
        tl.store(totals + where, total)


@triton.jit
def _attend_shared(
    q, keys, values, table, lengths, out, peaks, totals, scale, columns,
    GROUPS: tl.constexpr, SHARE: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, PARTS: tl.constexpr,
    REACH: tl.constexpr,
):  # fmt: skip
    """SHARE queries have one key head: they are the ROWS of a product, 16 at least."""
    row, group, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    low, high = _span(lengths, row, part, PARTS, REACH)
    d, m = tl.arange(0, WIDE), tl.arange(0, ROWS)
    query = (row * GROUPS + group) * SHARE + m
    mine = (m < SHARE)[:, None] & (d < D)[None, :]
    x = tl.load(q + query[:, None] * D + d[None, :], mask=mine, other=0.0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDE], tl.float32)
    for begin in range(low, high, BLOCK):
        at, there = _tile(table, row, begin, high, columns, GROUPS, group, d, D, BLOCK, PAGE)
        k = tl.load(keys + at, mask=there, other=0.0)
        scores = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
        seen = begin + tl.arange(0, BLOCK) < high
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        shrink, p = tl.exp(peak - higher), tl.exp(scores - higher[:, None])
        v = tl.load(values + at, mask=there, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(p, 1)
        peak = higher
    where = query * PARTS + part
    if PARTS == 1:
        tl.store(out + query[:, None] * D + d[None, :], acc / total[:, None], mask=mine)
    else:
        tl.store(out + where[:, None] * D + d[None, :], acc, mask=mine)
        tl.store(peaks + where, peak, mask=m < SHARE)
        tl.store(totals + where, total, mask=m < SHARE)


@triton.jit
def _span(lengths, row, part, PARTS: tl.constexpr, REACH: tl.constexpr):
    """The keys of a part: those within reach of the last one are cut into PARTS."""
    length = tl.load(lengths + row).to(tl.int32)
    first = tl.maximum(length - 1 - REACH, 0) if REACH >= 0 else 0
    step = tl.cdiv(length - first, PARTS)
    low = first + part * step
    return low, tl.minimum(low + step, length)


@triton.jit
def _tile(
    table, row, begin, high, columns, GROUPS: tl.constexpr, group, d, D: tl.constexpr,
    BLOCK: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Where BLOCK keys of a head lie, and which numbers of them there are."""
    at = begin + tl.arange(0, BLOCK)
    page = tl.load(table + row * columns + at // PAGE, mask=at < high, other=0)
    slot = page.to(tl.int64) * PAGE + at % PAGE
    where = slot[:, None] * (GROUPS * D) + group * D + d[None, :]
    return where, (at < high)[:, None] & (d < D)[None, :]


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, page: int,
    scale: float, reach: int | None = None, parts: int | None = None,
) -> Tensor:  # fmt: skip
    """q R H D; keys and values slots G D; table R P; lengths R → R H D.

    The query stands at its row's last key, and sees `reach` keys before it (None: all).
    """
    q = q.contiguous()
    (rows, heads, size), groups = q.shape, keys.shape[1]
    if parts is None:
        parts = max(1, min(16, _PROGRAMS // (rows * groups)))
    few = parts == 1
    shape = (rows, heads, size) if few else (rows, heads, parts, size)
    out = torch.empty(shape, dtype=q.dtype if few else torch.float32, device=q.device)
    peaks = out if few else torch.empty(shape[:-1], dtype=torch.float32, device=q.device)
    totals = out if few else torch.empty_like(peaks)
    given = (q, keys, values, table, lengths, out, peaks, totals, scale, table.stride(0))
    how = {
        "D": size, "WIDE": max(16, triton.next_power_of_2(size)), "BLOCK": _BLOCK, "PAGE": page,
        "PARTS": parts, "REACH": -1 if reach is None else reach, "num_warps": 4,
    }  # fmt: skip
    grid, share = (rows, groups, parts), heads // groups
    if share == 1:
        _attend_alone[grid](*given, HEADS=heads, **how)
    else:
        tall = max(16, triton.next_power_of_2(share))
        _attend_shared[grid](*given, GROUPS=groups, SHARE=share, ROWS=tall, **how)
    return out if few else _join(out, peaks, totals).to(q.dtype)


def _join(out: Tensor, peaks: Tensor, totals: Tensor) -> Tensor:
    """Sums of parts (R H S D) with their peaks and totals (R H S) → R H D; an empty part has no
    weight."""
    weight = (peaks - peaks.amax(-1, keepdim=True)).exp()
    whole = (out * weight[..., None]).sum(-2)
    return whole / (totals * weight).sum(-1, keepdim=True)
