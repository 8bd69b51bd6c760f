"""One query of each head against what is remembered, and the new token remembered on the way.

A program has one row's group of heads, which share keys and values, and a part of the keys. Queries
and the new key are turned here; the program of the last part meets the new token itself and writes
it behind the others. Whoever of a group's programs ends last puts the parts together (the ticks
count them, and are zero again then). How many tokens there are is read on the device, so that all
of this can be replayed.

Legend: R rows, H heads, G key/value heads, D head size, S keys, P parts.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from allformer.core.fused.gpu.dependent import LINE, chained, fetch_ahead, launch
from allformer.core.fused.turns import Turns

_TILE = 16_384  # bytes of keys, of 64 keys at most; as many values, and all of them twice
_LEAST = 256  # keys that are worth a part: to put parts together takes as long as to read so many
_MOST = 16  # parts


class Cut(NamedTuple):
    """How keys are read: in so many parts, by tiles of so many keys."""

    parts: int
    block: int = 64
    warps: int = 4
    stages: int = 3


@triton.jit
def _turned(base, at, d, there, cos, sin, D: tl.constexpr, TURNS: tl.constexpr):
    """Features `d` of heads at `base + at`, turned by the angles of their place, rounded once."""
    x = tl.load(base + at + d, mask=there, other=0.0)
    if TURNS:
        HALF: tl.constexpr = D // 2
        other = tl.load(base + at + tl.where(d < HALF, d + HALF, d - HALF), mask=there, other=0.0)
        place = tl.where(d < HALF, d, d - HALF)
        c = tl.load(cos + place, mask=d < D, other=0.0).to(tl.float32)
        s = tl.load(sin + place, mask=d < D, other=0.0).to(tl.float32)
        s = tl.where(d < HALF, -s, s)
        x = (x.to(tl.float32) * c + other.to(tl.float32) * s).to(base.dtype.element_ty)
    return x


@triton.jit
def _gather(
    part, mass, out, at, inside, first, PER: tl.constexpr, WIDE: tl.constexpr,
    PARTS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The parts of a group's heads by what each has seen; read past the first cache, in which they
    may be those of another layer. Unrolled, so that one wait is enough for all."""
    h, d = tl.arange(0, HEADS), tl.arange(0, WIDE)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    for i in tl.static_range(PARTS):
        spot = ((first + i) * HEADS + h) * 2
        high = tl.load(mass + spot, mask=h < PER, other=float("-inf"), cache_modifier=".cg")
        top = tl.maximum(top, high)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, WIDE], tl.float32)
    for i in tl.static_range(PARTS):
        spot = (first + i) * HEADS + h
        high = tl.load(mass + spot * 2, mask=h < PER, other=float("-inf"), cache_modifier=".cg")
        seen = tl.load(mass + spot * 2 + 1, mask=h < PER, other=0.0, cache_modifier=".cg")
        mine = tl.load(
            part + spot[:, None] * WIDE + d[None, :], mask=inside, other=0.0, cache_modifier=".cg"
        )
        share = tl.exp(high - top)
        total += share * seen
        acc += share[:, None] * mine
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + at + d[None, :], acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _one_query(
    fused, keys, values, past, keep, cos, sin, where, out, part, mass, ticks, room, kept, told,
    scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr,
    TURNS: tl.constexpr, KEEPS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    CHAIN: tl.constexpr, AHEAD: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    group, mine = tl.program_id(0), tl.program_id(1)
    row, g = group // G, group % G
    n = tl.load(past).to(tl.int32)  # tokens before this one: nobody counts on within a step
    chunk = tl.cdiv(tl.cdiv(n, PARTS), BLOCK) * BLOCK
    begin = mine * chunk
    end = tl.minimum(n, begin + chunk)
    h, d, place = tl.arange(0, HEADS), tl.arange(0, WIDE), tl.arange(0, BLOCK)
    keys += group.to(tl.int64) * room * D
    values += group.to(tl.int64) * room * D
    if CHAIN:  # earlier tokens were written in earlier steps
        old = tl.minimum(begin + place, room - 1)[:, None] * D
        old += tl.minimum(tl.arange(0, AHEAD) * LINES, D - 1)[None, :]
        fetch_ahead(keys + old)
        fetch_ahead(values + old)
        gdc_launch_dependents()
        gdc_wait()
    PER: tl.constexpr = H // G
    fused += row.to(tl.int64) * ((H + 2 * G) * D)
    if TURNS:
        spot = tl.load(where + row * told) * (D // 2)
        cos += spot
        sin += spot
    inside = (h < PER)[:, None] & (d < D)[None, :]
    at = (g * PER + h)[:, None] * D
    q = _turned(fused, at, d[None, :], inside, cos, sin, D, TURNS)  # HEADS WIDE
    if KEEPS:
        keep += row.to(tl.int64) * kept
    high = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, WIDE], tl.float32)
    for start in range(begin, end, BLOCK):
        j = start + place
        k = tl.load(
            keys + j[None, :] * D + d[:, None],
            mask=(j < end)[None, :] & (d < D)[:, None],
            other=0.0,
        )
        s = tl.dot(q, k, input_precision="ieee") * scale
        may = j < end
        if KEEPS:
            may = may & (tl.load(keep + j, mask=may, other=0) != 0)
        s = tl.where(may[None, :], s, float("-inf"))
        new = tl.maximum(high, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(s - safe[:, None])
        grow = tl.exp(high - safe)
        total = total * grow + tl.sum(p, 1)
        v = tl.load(
            values + j[:, None] * D + d[None, :], mask=(j < end)[:, None] & (d < D)[None, :],
            other=0.0,
        )  # fmt: skip
        acc = acc * grow[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        high = new
    if mine == PARTS - 1:  # the new token
        k = _turned(fused, (H + g) * D, d, d < D, cos, sin, D, TURNS)
        v = tl.load(fused + (H + G + g) * D + d, mask=d < D, other=0.0)
        tl.store(keys + n * D + d, k, mask=d < D)
        tl.store(values + n * D + d, v, mask=d < D)
        s = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
        if KEEPS:
            s = tl.where(tl.load(keep + n) != 0, s, float("-inf"))
        new = tl.maximum(high, s)
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(s - safe)
        grow = tl.exp(high - safe)
        total = total * grow + p
        acc = acc * grow[:, None] + p[:, None] * v.to(tl.float32)[None, :]
        high = new
    at += row * (H * D)
    if PARTS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + at + d[None, :], acc.to(out.dtype.element_ty), mask=inside)
    else:
        first = group * PARTS
        spot = (first + mine) * HEADS + h
        tl.store(part + spot[:, None] * WIDE + d[None, :], acc, mask=inside)
        tl.store(mass + spot * 2, high, mask=h < PER)
        tl.store(mass + spot * 2 + 1, total, mask=h < PER)
        tl.debug_barrier()  # all threads have written before one of them says so
        if tl.atomic_add(ticks + group, 1, sem="acq_rel") == PARTS - 1:
            _gather(part, mass, out, at, inside, first, PER, WIDE, PARTS, HEADS)
            tl.store(ticks + group, 0)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def cut_of(rows: int, memory: Tensor) -> Cut:
    """Two programs for each multiprocessor, if there is enough to read."""
    _, groups, room, size = memory.shape
    wide = max(16, triton.next_power_of_2(size)) * memory.element_size()
    block = min(64, max(16, _TILE // wide))
    if not memory.is_cuda:
        return Cut(1, block)
    wanted = max(1, 2 * _processors(memory.device) // (rows * groups))
    return Cut(min(wanted, triton.cdiv(room, _LEAST), _MOST), block)


def one_query(
    fused: Tensor, keys: Tensor, values: Tensor, past: Tensor, keep: Tensor | None,
    turn: Turns | None, heads: int, scale: float, ticks: Tensor, cut: Cut | None = None,
) -> Tensor:  # fmt: skip
    """fused R (H+2G)·D, keys and values R G room D, keep R room → R H·D.

    `ticks` are at least R·G zeros (int32), and zeros again afterwards.
    """
    rows, groups, room, size = keys.shape
    parts, block, warps, stages = cut or cut_of(rows, keys)
    wide = max(16, triton.next_power_of_2(size))
    held = max(16, triton.next_power_of_2(heads // groups))
    out = fused.new_empty(rows, heads * size)
    part = mass = out  # unused if there is one part
    if parts > 1:
        part = fused.new_empty(rows * groups * parts * held, wide, dtype=torch.float32)
        mass = fused.new_empty(rows * groups * parts * held, 2, dtype=torch.float32)
    cos, sin, where = turn or (out, out, None)
    where = past if where is None else where  # of each row; or all stand where the new token does
    keep = None if keep is None else keep.view(torch.uint8)
    _one_query[(rows * groups, parts)](
        fused, keys, values, past, keep, cos, sin, where, out, part, mass, ticks, room,
        0 if keep is None else keep.stride(0), where.stride(0) if where.numel() > 1 else 0, scale,
        H=heads, G=groups, D=size, WIDE=wide, HEADS=held, TURNS=turn is not None,
        KEEPS=keep is not None, PARTS=parts, BLOCK=block, num_warps=warps, num_stages=stages,
        AHEAD=triton.cdiv(wide * fused.element_size(), LINE), LINES=LINE // fused.element_size(),
        **launch(chained(fused.device)),
    )  # fmt: skip
    return out
