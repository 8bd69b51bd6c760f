"""Attention inside short rows that lie end to end: one program for each row and head.

Flash kernels cut rows into tiles of 128 queries, which are mostly empty with sentences of 15 to 60
tokens, and keep statistics between passes. Here the tile is as large as a usual row, a row that
fits one tile is done in a single step, and queries, keys and values are read where the projection
left them: their gradients go back into one tensor of the same form.

Legend: N queries, M keys, H heads, D head size, R rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from allformer.core.fused.gpu.random import keep, keys
from allformer.core.fused.random import threshold

# Forward and backward: a long row among short ones is what the others wait for.
_WARPS = {16: (1, 2), 32: (2, 4), 64: (4, 4), 128: (8, 8)}


@triton.jit
def _load(base, begin, place, length, step, D: tl.constexpr):
    """A tile of a head: rows `begin + place` that are inside `length`, the rest zeros."""
    at = (begin + place)[:, None].to(tl.int64) * step + tl.arange(0, D)[None, :]
    return tl.load(base + at, mask=(place < length)[:, None], other=0.0)


@triton.jit
def _save(base, begin, place, length, step, tile, D: tl.constexpr):
    at = (begin + place)[:, None].to(tl.int64) * step + tl.arange(0, D)[None, :]
    tl.store(base + at, tile.to(base.dtype.element_ty), mask=(place < length)[:, None])


@triton.jit
def _scores(q, k, i, j, m, scale, CAUSAL: tl.constexpr):
    """Scores of queries at `i` and keys at `j` in their row; −inf where nobody may look."""
    s = tl.dot(q, tl.trans(k)) * scale
    may = (j < m)[None, :]
    if CAUSAL:
        may = may & (i[:, None] >= j[None, :])
    return tl.where(may, s, float("-inf"))


@triton.jit
def _kept(begin, i, j, head, heads, first, second, WIDTH: tl.constexpr, THRESHOLD: tl.constexpr):
    """The mask of weights, numbered as in a tensor N H WIDTH."""
    at = ((begin + i) * heads + head)[:, None].to(tl.int64) * WIDTH + j[None, :]
    return keep(at, first, second, THRESHOLD)


@triton.jit
def _rows(
    q, k, v, starts_q, starts_k, out, lse, seed, heads, step_q, step_k, scale,
    CAUSAL: tl.constexpr, SITE: tl.constexpr, THRESHOLD: tl.constexpr, GROW: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1)
    begin, begin_k = tl.load(starts_q + row), tl.load(starts_k + row)
    n, m = tl.load(starts_q + row + 1) - begin, tl.load(starts_k + row + 1) - begin_k
    q += head * D
    k += head * D
    v += head * D
    out += head * D
    place = tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        i = start + place
        tile_q = _load(q, begin, i, n, step_q, D)
        high = tl.full([BLOCK], float("-inf"), tl.float32)
        mass = tl.zeros([BLOCK], tl.float32)
        acc = tl.zeros([BLOCK, D], tl.float32)
        end = m
        if CAUSAL:
            end = tl.minimum(m, start + BLOCK)
        for start_k in range(0, end, BLOCK):
            j = start_k + place
            tile_k = _load(k, begin_k, j, m, step_k, D)
            s = _scores(tile_q, tile_k, i, j, m, scale, CAUSAL)
            new = tl.maximum(high, tl.max(s, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp(s - safe[:, None])
            grow = tl.exp(high - safe)
            mass = mass * grow + tl.sum(p, 1)
            if THRESHOLD > 0:
                first, second = keys(seed, SITE)
                kept = _kept(begin, i, j, head, heads, first, second, WIDTH, THRESHOLD)
                p = tl.where(kept, p * GROW, 0.0)
            tile_v = _load(v, begin_k, j, m, step_k, D)
            acc = acc * grow[:, None] + tl.dot(p.to(tile_v.dtype), tile_v)
            high = new
        blind = mass == 0.0
        acc = acc / tl.where(blind, 1.0, mass)[:, None]
        _save(out, begin, i, n, heads * D, acc, D)
        total = tl.where(blind, 0.0, high + tl.log(tl.where(blind, 1.0, mass)))
        tl.store(lse + (begin + i) * heads + head, total, mask=i < n)


@triton.jit
def _weights(
    q, k, v, do, lse, delta, begin, i, j, m, head, heads, seed, scale,
    CAUSAL: tl.constexpr, SITE: tl.constexpr, THRESHOLD: tl.constexpr, GROW: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The weights as values meet them, and the gradient of the scores, of one pair of tiles."""
    s = _scores(q, k, i, j, m, scale, CAUSAL)
    p = tl.exp(s - lse[:, None])
    dp = tl.dot(do, tl.trans(v))
    thin = p
    if THRESHOLD > 0:
        first, second = keys(seed, SITE)
        kept = _kept(begin, i, j, head, heads, first, second, WIDTH, THRESHOLD)
        thin = tl.where(kept, p * GROW, 0.0)
        dp = tl.where(kept, dp * GROW, 0.0)
    ds = p * (dp - delta[:, None]) * scale
    return thin, ds


@triton.jit
def _rows_back(
    q, k, v, starts_q, starts_k, out, lse, do, dq, dk, dv, seed, heads, step_q, step_k, scale,
    CAUSAL: tl.constexpr, SITE: tl.constexpr, THRESHOLD: tl.constexpr, GROW: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1)
    begin, begin_k = tl.load(starts_q + row), tl.load(starts_k + row)
    n, m = tl.load(starts_q + row + 1) - begin, tl.load(starts_k + row + 1) - begin_k
    q += head * D
    k += head * D
    v += head * D
    out += head * D
    do += head * D
    dq += head * D
    dk += head * D
    dv += head * D
    place = tl.arange(0, BLOCK)
    if (n <= BLOCK) & (m <= BLOCK):
        if (n > 0) | (m > 0):
            tile_q = _load(q, begin, place, n, step_q, D)
            tile_k = _load(k, begin_k, place, m, step_k, D)
            tile_v = _load(v, begin_k, place, m, step_k, D)
            tile_do = _load(do, begin, place, n, heads * D, D)
            tile_o = _load(out, begin, place, n, heads * D, D)
            delta = tl.sum(tile_do.to(tl.float32) * tile_o.to(tl.float32), 1)
            total = tl.load(lse + (begin + place) * heads + head, mask=place < n, other=0.0)
            thin, ds = _weights(
                tile_q, tile_k, tile_v, tile_do, total, delta, begin, place, place, m, head, heads,
                seed, scale, CAUSAL, SITE, THRESHOLD, GROW, WIDTH,
            )  # fmt: skip
            ds = ds.to(tile_q.dtype)
            _save(
                dv, begin_k, place, m, step_k, tl.dot(tl.trans(thin.to(tile_q.dtype)), tile_do), D
            )
            _save(dq, begin, place, n, step_q, tl.dot(ds, tile_k), D)
            _save(dk, begin_k, place, m, step_k, tl.dot(tl.trans(ds), tile_q), D)
    else:
        for start_k in range(0, m, BLOCK):
            j = start_k + place
            tile_k = _load(k, begin_k, j, m, step_k, D)
            tile_v = _load(v, begin_k, j, m, step_k, D)
            acc_k = tl.zeros([BLOCK, D], tl.float32)
            acc_v = tl.zeros([BLOCK, D], tl.float32)
            low = 0
            if CAUSAL:
                low = start_k
            for start in range(low, n, BLOCK):
                i = start + place
                tile_q = _load(q, begin, i, n, step_q, D)
                tile_do = _load(do, begin, i, n, heads * D, D)
                tile_o = _load(out, begin, i, n, heads * D, D)
                delta = tl.sum(tile_do.to(tl.float32) * tile_o.to(tl.float32), 1)
                total = tl.load(lse + (begin + i) * heads + head, mask=i < n, other=0.0)
                thin, ds = _weights(
                    tile_q, tile_k, tile_v, tile_do, total, delta, begin, i, j, m, head, heads,
                    seed, scale, CAUSAL, SITE, THRESHOLD, GROW, WIDTH,
                )  # fmt: skip
                acc_v += tl.dot(tl.trans(thin.to(tile_q.dtype)), tile_do)
                acc_k += tl.dot(tl.trans(ds.to(tile_q.dtype)), tile_q)
            _save(dv, begin_k, j, m, step_k, acc_v, D)
            _save(dk, begin_k, j, m, step_k, acc_k, D)
        for start in range(0, n, BLOCK):
            i = start + place
            tile_q = _load(q, begin, i, n, step_q, D)
            tile_do = _load(do, begin, i, n, heads * D, D)
            tile_o = _load(out, begin, i, n, heads * D, D)
            delta = tl.sum(tile_do.to(tl.float32) * tile_o.to(tl.float32), 1)
            total = tl.load(lse + (begin + i) * heads + head, mask=i < n, other=0.0)
            acc = tl.zeros([BLOCK, D], tl.float32)
            end = m
            if CAUSAL:
                end = tl.minimum(m, start + BLOCK)
            for start_k in range(0, end, BLOCK):
                j = start_k + place
                tile_k = _load(k, begin_k, j, m, step_k, D)
                tile_v = _load(v, begin_k, j, m, step_k, D)
                thin, ds = _weights(
                    tile_q, tile_k, tile_v, tile_do, total, delta, begin, i, j, m, head, heads,
                    seed, scale, CAUSAL, SITE, THRESHOLD, GROW, WIDTH,
                )  # fmt: skip
                acc += tl.dot(ds.to(tile_q.dtype), tile_k)
            _save(dq, begin, i, n, step_q, acc, D)


def _cut(x: Tensor, memory: Tensor | None, width: int) -> tuple[list[Tensor], int, int]:
    """Where queries, keys and values begin, and how far it is from token to token."""
    if memory is None:
        parts = [x, x[:, width:], x[:, 2 * width :]]
        return parts, x.shape[1], x.shape[1]
    return [x, memory, memory[:, width:]], x.shape[1], memory.shape[1]


@torch.library.custom_op("allformer::short_rows", mutates_args=())
def short_rows(
    x: Tensor, memory: Tensor | None, starts: Tensor, starts_k: Tensor | None, heads: int,
    size: int, causal: bool, scale: float, width: int, block: int, seed: Tensor | None, site: int,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x N 3·H·D, or queries N H·D and memory M 2·H·D → the context N H·D, and log Σ exp N H."""
    x = x.contiguous()
    memory = None if memory is None else memory.contiguous()
    (q, k, v), step_q, step_k = _cut(x, memory, heads * size)
    out = x.new_empty(x.shape[0], heads * size)
    lse = x.new_empty(x.shape[0], heads, dtype=torch.float32)
    _rows[(heads, starts.shape[0] - 1)](
        q, k, v, starts, starts if starts_k is None else starts_k, out, lse, seed, heads, step_q,
        step_k, scale,
        CAUSAL=causal, SITE=site, THRESHOLD=threshold(dropout), GROW=1 / (1 - dropout),
        WIDTH=width, D=size, BLOCK=block, num_warps=_WARPS[block][0], num_stages=1,
    )  # fmt: skip
    return out, lse


@short_rows.register_fake
def _(
    x, memory, starts, starts_k, heads, size, causal, scale, width, block, seed, site, dropout
):  # fmt: skip
    out = x.new_empty(x.shape[0], heads * size)
    return out, x.new_empty(x.shape[0], heads, dtype=torch.float32)


@torch.library.custom_op("allformer::short_rows_backward", mutates_args=())
def short_rows_backward(
    d_out: Tensor, x: Tensor, memory: Tensor | None, starts: Tensor, starts_k: Tensor | None,
    out: Tensor, lse: Tensor, heads: int, size: int, causal: bool, scale: float, width: int,
    block: int, seed: Tensor | None, site: int, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of x and memory (empty where there is none)."""
    x, d_out = x.contiguous(), d_out.contiguous()
    memory = None if memory is None else memory.contiguous()
    dx = torch.empty_like(x)
    d_memory = x.new_empty(0) if memory is None else torch.empty_like(memory)
    (q, k, v), step_q, step_k = _cut(x, memory, heads * size)
    (dq, dk, dv), _, _ = _cut(dx, None if memory is None else d_memory, heads * size)
    _rows_back[(heads, starts.shape[0] - 1)](
        q, k, v, starts, starts if starts_k is None else starts_k, out, lse, d_out, dq, dk, dv,
        seed, heads, step_q, step_k, scale,
        CAUSAL=causal, SITE=site, THRESHOLD=threshold(dropout), GROW=1 / (1 - dropout),
        WIDTH=width, D=size, BLOCK=block, num_warps=_WARPS[block][1], num_stages=1,
    )  # fmt: skip
    return dx, d_memory


@short_rows_backward.register_fake
def _(
    d_out, x, memory, starts, starts_k, out, lse, heads, size, causal, scale, width, block, seed,
    site, dropout,
):  # fmt: skip
    d_memory = x.new_empty(0) if memory is None else torch.empty_like(memory)
    return torch.empty_like(x), d_memory
