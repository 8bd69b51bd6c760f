"""Rotary positions on the fused projection: query and key heads are turned, values copied.

Legend: N tokens, W width of the fused product, P rows of angles, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_HEADS, _WARPS = 8, 4


@triton.jit
def _turn(
    x, cos, sin, out, W, P, turned, heads, SIGN: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    place = tl.arange(0, HALF)
    angle = (row % P) * HALF + place
    c = tl.load(cos + angle).to(tl.float32)[None, :]
    s = tl.load(sin + angle).to(tl.float32)[None, :] * SIGN
    at = row * W + head[:, None] * (2 * HALF) + place[None, :]
    there = (head < heads)[:, None]
    first = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(x + at + HALF, mask=there, other=0.0).to(tl.float32)
    turns = (head < turned)[:, None]
    tl.store(out + at, tl.where(turns, first * c - second * s, first), mask=there)
    tl.store(out + at + HALF, tl.where(turns, second * c + first * s, second), mask=there)


@torch.library.custom_op("allformer::turn", mutates_args=())
def turn(x: Tensor, cos: Tensor, sin: Tensor, turned: int, back: bool) -> Tensor:
    """x N W, angles P D/2 (token n has row n mod P) → the same, `turned` heads turned (`back`)."""
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    half = cos.shape[1]
    heads = x.shape[1] // (2 * half)
    out = torch.empty_like(x)
    _turn[(x.shape[0], triton.cdiv(heads, _HEADS))](
        x, cos, sin, out, x.shape[1], cos.shape[0], turned, heads,
        SIGN=-1.0 if back else 1.0, HALF=half, HEADS=_HEADS, num_warps=_WARPS,
    )  # fmt: skip
    return out


@turn.register_fake
def _(x, cos, sin, turned, back):
    return torch.empty_like(x, memory_format=torch.contiguous_format)
