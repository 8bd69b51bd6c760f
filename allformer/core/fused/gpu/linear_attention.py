"""Causal linear attention in chunks, φ(x) = elu(x) + 1, straight from the fused projection.

A program has one chunk: scores of its own pairs, and the sums over keys of the chunks before it,
which one kernel makes for each chunk and `cumsum` adds up. Backward goes the same way with sums
over queries of the chunks after it. The sums are made again there instead of being stored.

    w_ts = φ(q_t)·φ(k_s),  m_t = Σ_{s≤t} w_ts,  o_t = Σ_{s≤t} w_ts v_s / m_t
    dw_ts = (do_t·v_s − do_t·o_t) / m_t,  dφ(q_t) = Σ_{s≤t} dw_ts φ(k_s),
    dφ(k_s) = Σ_{t≥s} dw_ts φ(q_t),  dv_s = Σ_{t≥s} w_ts do_t / m_t

Legend: B batch, T tokens, H heads, G key/value heads, D head size, C chunks, L tokens of a chunk,
W = (H+2G)·D columns of the projection. Sums are D·(D+1): a matrix by values, and their mass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK = 64
_WARPS = {16: 4, 32: 4, 64: 4, 128: 8}


@triton.jit
def _load(base, row, place, T, step, D: tl.constexpr):
    """A tile of a head: tokens `place` of the batch row that begins at `row`, the rest zeros.

    In fp32, so that products are those of TF32, which holds bf16 exactly: Triton's products of
    bf16 tiles gave wrong sums here (heads of 16) or read outside (heads of 32) on Hopper.
    """
    at = (row + place)[:, None].to(tl.int64) * step + tl.arange(0, D)[None, :]
    return tl.load(base + at, mask=(place < T)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _save(base, row, place, T, step, tile, D: tl.constexpr):
    at = (row + place)[:, None].to(tl.int64) * step + tl.arange(0, D)[None, :]
    tl.store(base + at, tile.to(base.dtype.element_ty), mask=(place < T)[:, None])


@triton.jit
def _there(keep, row, place, T, KEEP: tl.constexpr):
    """Where a key stands: inside the row, and no padding."""
    there = place < T
    if KEEP:
        there = there & (tl.load(keep + row + place, mask=there, other=0) != 0)
    return there


@triton.jit
def _phi(x):
    return tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))


@triton.jit
def _slope(x):
    """φ′."""
    return tl.exp(tl.minimum(x, 0.0))


@triton.jit
def _sums_at(sums, index, D: tl.constexpr):
    """The sums of a chunk: D D, and D."""
    i = tl.arange(0, D)
    base = sums + index.to(tl.int64) * (D * (D + 1))
    return tl.load(base + i[:, None] * D + i[None, :]), tl.load(base + D * D + i)


@triton.jit
def _put_sums(sums, index, values, mass, D: tl.constexpr):
    i = tl.arange(0, D)
    base = sums + index.to(tl.int64) * (D * (D + 1))
    tl.store(base + i[:, None] * D + i[None, :], values)
    tl.store(base + D * D + i, mass)


@triton.jit
def _key_sums(
    x, keep, sums, T, C, groups,
    KEEP: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    c, bg = tl.program_id(0), tl.program_id(1)
    row, g = (bg // groups) * T, bg % groups
    heads = groups * MANY
    step = (heads + 2 * groups) * D
    place = c * L + tl.arange(0, L)
    there = _there(keep, row, place, T, KEEP)
    k = _load(x + (heads + g) * D, row, place, T, step, D)
    v = _load(x + (heads + groups + g) * D, row, place, T, step, D)
    phi = tl.where(there[:, None], _phi(k), 0.0)
    values = tl.dot(tl.trans(phi), v)
    _put_sums(sums, bg * (C + 1) + c + 1, values, tl.sum(phi, 0), D)


@triton.jit
def _read(
    x, keep, sums, out, inverse, T, C, groups,
    KEEP: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    c, bh = tl.program_id(0), tl.program_id(1)
    heads = groups * MANY
    b, h = bh // heads, bh % heads
    g = h // MANY
    row, step = b * T, (heads + 2 * groups) * D
    place = c * L + tl.arange(0, L)
    there = _there(keep, row, place, T, KEEP)
    q = _load(x + h * D, row, place, T, step, D)
    k = _load(x + (heads + g) * D, row, place, T, step, D)
    v = _load(x + (heads + groups + g) * D, row, place, T, step, D)
    phi_q = _phi(q)
    phi_k = tl.where(there[:, None], _phi(k), 0.0)
    w = tl.dot(phi_q, tl.trans(phi_k))
    w = tl.where(place[:, None] >= place[None, :], w, 0.0)
    values, mass = _sums_at(sums, (b * groups + g) * (C + 1) + c, D)
    acc = tl.dot(w, v) + tl.dot(phi_q, values)
    total = tl.sum(w, 1) + tl.sum(phi_q * mass[None, :], 1)
    part = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    _save(out + h * D, row, place, T, heads * D, acc * part[:, None], D)
    tl.store(inverse + (row + place).to(tl.int64) * heads + h, part, mask=place < T)


@triton.jit
def _came_back(out, d_out, inverse, row, place, T, heads, h, D: tl.constexpr):
    """do, do·o and 1/m of a chunk of a head."""
    do = _load(d_out + h * D, row, place, T, heads * D, D)
    o = _load(out + h * D, row, place, T, heads * D, D)
    delta = tl.sum(do * o, 1)
    at = (row + place).to(tl.int64) * heads + h
    return do, delta, tl.load(inverse + at, mask=place < T, other=0.0)


@triton.jit
def _query_sums(
    x, out, d_out, inverse, sums, T, C, groups,
    MANY: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    c, bg = tl.program_id(0), tl.program_id(1)
    row, g = (bg // groups) * T, bg % groups
    heads = groups * MANY
    step = (heads + 2 * groups) * D
    place = c * L + tl.arange(0, L)
    values = tl.zeros([D, D], tl.float32)
    mass = tl.zeros([D], tl.float32)
    for r in range(MANY):
        h = g * MANY + r
        do, delta, part = _came_back(out, d_out, inverse, row, place, T, heads, h, D)
        q = _load(x + h * D, row, place, T, step, D)
        phi = _phi(q) * part[:, None]
        values += tl.dot(tl.trans(phi), do)
        mass -= tl.sum(phi * delta[:, None], 0)
    _put_sums(sums, bg * (C + 1) + C - c, values, mass, D)  # the last chunk comes first


@triton.jit
def _back_queries(
    x, keep, sums, out, d_out, inverse, dx, T, C, groups,
    KEEP: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    c, bh = tl.program_id(0), tl.program_id(1)
    heads = groups * MANY
    b, h = bh // heads, bh % heads
    g = h // MANY
    row, step = b * T, (heads + 2 * groups) * D
    place = c * L + tl.arange(0, L)
    there = _there(keep, row, place, T, KEEP)
    do, delta, part = _came_back(out, d_out, inverse, row, place, T, heads, h, D)
    q = _load(x + h * D, row, place, T, step, D)
    k = _load(x + (heads + g) * D, row, place, T, step, D)
    v = _load(x + (heads + groups + g) * D, row, place, T, step, D)
    phi_k = tl.where(there[:, None], _phi(k), 0.0)
    dw = (tl.dot(do, tl.trans(v)) - delta[:, None]) * part[:, None]
    dw = tl.where(place[:, None] >= place[None, :], dw, 0.0)
    values, mass = _sums_at(sums, (b * groups + g) * (C + 1) + c, D)
    past = tl.dot(do, tl.trans(values)) - delta[:, None] * mass[None, :]
    d_phi = tl.dot(dw, phi_k) + past * part[:, None]
    _save(dx + h * D, row, place, T, step, d_phi * _slope(q), D)


@triton.jit
def _back_keys(
    x, keep, sums, out, d_out, inverse, dx, T, C, groups,
    KEEP: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    c, bg = tl.program_id(0), tl.program_id(1)
    row, g = (bg // groups) * T, bg % groups
    heads = groups * MANY
    step = (heads + 2 * groups) * D
    place = c * L + tl.arange(0, L)
    there = _there(keep, row, place, T, KEEP)
    k = _load(x + (heads + g) * D, row, place, T, step, D)
    v = _load(x + (heads + groups + g) * D, row, place, T, step, D)
    phi_k = tl.where(there[:, None], _phi(k), 0.0)
    values, mass = _sums_at(sums, bg * (C + 1) + C - 1 - c, D)  # of the chunks after this one
    d_phi = tl.dot(v, tl.trans(values)) + mass[None, :]
    dv = tl.dot(phi_k, values)
    for r in range(MANY):
        h = g * MANY + r
        do, delta, part = _came_back(out, d_out, inverse, row, place, T, heads, h, D)
        q = _load(x + h * D, row, place, T, step, D)
        phi_q = _phi(q)
        later = place[:, None] <= place[None, :]  # keys down, queries across
        w = tl.where(later, tl.dot(phi_k, tl.trans(phi_q)) * part[None, :], 0.0)
        dw = (tl.dot(v, tl.trans(do)) - delta[None, :]) * part[None, :]
        dw = tl.where(later, dw, 0.0)
        dv += tl.dot(w, do)
        d_phi += tl.dot(dw, phi_q)
    d_phi = tl.where(there[:, None], d_phi * _slope(k), 0.0)
    _save(dx + (heads + g) * D, row, place, T, step, d_phi, D)
    _save(dx + (heads + groups + g) * D, row, place, T, step, dv, D)


def _tiles(heads: int, groups: int, size: int) -> dict[str, int]:
    tiles = {"MANY": heads // groups, "D": size, "L": _CHUNK}
    return {**tiles, "num_warps": _WARPS[size], "num_stages": 1}


def _empty_sums(x: Tensor, groups: int, size: int) -> tuple[Tensor, int]:
    """Room for those of each chunk, behind one of zeros; and how many chunks there are."""
    chunks = triton.cdiv(x.shape[1], _CHUNK)
    shape = (x.shape[0] * groups, chunks + 1, size * (size + 1))
    sums = torch.empty(shape, dtype=torch.float32, device=x.device)
    sums[:, 0] = 0.0
    return sums, chunks


def _key_sums_of(x: Tensor, keep: Tensor | None, heads: int, groups: int, size: int) -> Tensor:
    sums, chunks = _empty_sums(x, groups, size)
    _key_sums[(chunks, x.shape[0] * groups)](
        x, keep, sums, x.shape[1], chunks, groups,
        KEEP=keep is not None, **_tiles(heads, groups, size),
    )  # fmt: skip
    return sums.cumsum_(1)


@torch.library.custom_op("allformer::linear_attention", mutates_args=())
def linear_attention(
    x: Tensor, keep: Tensor | None, heads: int, groups: int, size: int
) -> tuple[Tensor, Tensor]:
    """x B T W and keep B T (uint8, 0 = padding) → the context B T H·D, and 1/m B T H."""
    x = x.contiguous()
    batch, tokens, _ = x.shape
    sums = _key_sums_of(x, keep, heads, groups, size)
    chunks = sums.shape[1] - 1
    out = x.new_empty(batch, tokens, heads * size)
    inverse = torch.empty(batch, tokens, heads, dtype=torch.float32, device=x.device)
    _read[(chunks, batch * heads)](
        x, keep, sums, out, inverse, tokens, chunks, groups,
        KEEP=keep is not None, **_tiles(heads, groups, size),
    )  # fmt: skip
    return out, inverse


@linear_attention.register_fake
def _(x, keep, heads, groups, size):
    out = x.new_empty(x.shape[0], x.shape[1], heads * size)
    return out, x.new_empty(x.shape[0], x.shape[1], heads, dtype=torch.float32)


@torch.library.custom_op("allformer::linear_attention_backward", mutates_args=())
def linear_attention_backward(
    d_out: Tensor, x: Tensor, keep: Tensor | None, out: Tensor, inverse: Tensor,
    heads: int, groups: int, size: int,
) -> Tensor:  # fmt: skip
    """The gradient of x."""
    x, d_out = x.contiguous(), d_out.contiguous()
    batch, tokens, _ = x.shape
    dx = torch.empty_like(x)
    before = _key_sums_of(x, keep, heads, groups, size)
    after, chunks = _empty_sums(x, groups, size)
    tiles = _tiles(heads, groups, size)
    _query_sums[(chunks, batch * groups)](
        x, out, d_out, inverse, after, tokens, chunks, groups, **tiles
    )
    after.cumsum_(1)
    for kernel, many, sums in ((_back_queries, heads, before), (_back_keys, groups, after)):
        kernel[(chunks, batch * many)](
            x, keep, sums, out, d_out, inverse, dx, tokens, chunks, groups,
            KEEP=keep is not None, **tiles,
        )  # fmt: skip
    return dx


@linear_attention_backward.register_fake
def _(d_out, x, keep, out, inverse, heads, groups, size):
    return torch.empty_like(x, memory_format=torch.contiguous_format)
