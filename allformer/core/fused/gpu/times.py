"""x Wᵀ of a few rows, at the speed at which W can be read: a norm before it, bias, activation, gate
and residual behind it, in one kernel.

Of one row, numbers are multiplied and added as they come (`_row`). Of several, and of weights in
few bits, the tensor cores do that (`_rows`): a tile of W meets all rows at once, its inputs dealt
out to lanes, a warp each, whose sums are added at the end. Numbers are rounded where the plain form
rounds them: behind the norm, the product, the activation and the sum.

Legend: R rows, K inputs, N outputs, L lanes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from allformer.core.fused.gpu.dependent import LINE, chained, fetch_ahead, launch
from allformer.core.fused.gpu.feed import ACTS, _act
from allformer.core.fused.matrix import Gain, Matrix

_AHEAD = 16  # lines of each output that are asked for before it is known what they meet


class Tile(NamedTuple):
    """How the work is cut: outputs and inputs of a tile, warps; of `_rows` lanes, stages, and how
    many rows there are at least."""

    outputs: int
    inputs: int
    warps: int = 4
    lanes: int = 1
    stages: int = 1
    rows: int = 8  # as many columns as tensor cores multiply at a time


@triton.jit
def _statistics(x, eps, K: tl.constexpr, WIDE: tl.constexpr, NORM: tl.constexpr):
    """Mean and 1/σ of one row; RMS has no mean."""
    at = tl.arange(0, WIDE)
    row = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
    mean = 0.0
    if NORM == 2:
        mean = tl.sum(row) / K
        row = tl.where(at < K, row - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(row * row) / K + eps)


@triton.jit
def _normed(x, at, mean, rstd, weight, bias, there, NORM: tl.constexpr):
    """The norm of numbers x, whose features are `at`, rounded as they are."""
    y = (x.to(tl.float32) - mean) * rstd
    y *= tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    if NORM == 2:
        y += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
    return y.to(x.dtype)


@triton.jit
def _norm_rows(
    x, weight, bias, out, eps, K: tl.constexpr, WIDE: tl.constexpr, NORM: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    if CHAIN:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.arange(0, WIDE)
    x += tl.program_id(0) * K
    mean, rstd = _statistics(x, eps, K, WIDE, NORM)
    row = tl.load(x + at, mask=at < K, other=0.0)
    y = _normed(row, at, mean, rstd, weight, bias, at < K, NORM)
    tl.store(out + tl.program_id(0) * K + at, y, mask=at < K)


@triton.jit
def _rounded(x, like):
    """In fp32, as many digits as numbers at `like` have."""
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _finish(
    y, other, at, more, out, there, ACT: tl.constexpr, GATED: tl.constexpr, ADDS: tl.constexpr
):
    """Activation, gate and residual of what the product gave, and where it goes."""
    y = _rounded(y, out)
    if GATED:
        a, _ = _act(_rounded(other, out), ACT, False, False)
        y = _rounded(a, out) * y
    elif ACT >= 0:
        y, _ = _act(y, ACT, False, False)
    if ADDS:
        y = _rounded(y, out) + tl.load(more + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _row(
    x, w, g, scale, scale_g, bias, bias_g, norm, norm_bias, more, out, N, eps,
    K: tl.constexpr, WIDE: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
    BIAS: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, ADDS: tl.constexpr,
    CHAIN: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    at = tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + k[None, :]
    tile = tl.load(w + at, mask=(k < K)[None, :], other=0.0)
    if GATED:
        tile_g = tl.load(g + at, mask=(k < K)[None, :], other=0.0)
    if CHAIN:  # the first weights are on their way: they depend on nobody
        gdc_launch_dependents()
        gdc_wait()
    if NORM > 0:
        mean, rstd = _statistics(x, eps, K, WIDE, NORM)
    acc = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    acc_g = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(0, K, INPUTS):
        after = start + INPUTS
        coming = (after + k < K)[None, :]
        next_tile = tl.load(w + at + after, mask=coming, other=0.0)
        if GATED:
            next_g = tl.load(g + at + after, mask=coming, other=0.0)
        here = start + k < K
        seen = tl.load(x + start + k, mask=here, other=0.0)
        if NORM > 0:
            seen = _normed(seen, start + k, mean, rstd, norm, norm_bias, here, NORM)
        seen = seen.to(tl.float32)[None, :]
        acc += tile.to(tl.float32) * seen
        tile = next_tile
        if GATED:
            acc_g += tile_g.to(tl.float32) * seen
            tile_g = next_g
    y, other = tl.sum(acc, 1), tl.sum(acc_g, 1)
    there = n < N
    if SCALED:
        y *= tl.load(scale + n, mask=there, other=0.0).to(tl.float32)
        if GATED:
            other *= tl.load(scale_g + n, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)
        if GATED:
            other += tl.load(bias_g + n, mask=there, other=0.0).to(tl.float32)
    _finish(y, other, n, more, out, there, ACT, GATED, ADDS)


def _halves(lead: int) -> str:
    """Both halves of four bytes as numbers of two bytes, the low ones and the high ones.

    A half is put behind the leading bit of a number whose last digit counts ones (128 in bf16, 1024
    in fp16): one instruction for each, where converting takes five. What is too much is taken off
    the sums.
    """
    puts = "\n".join(
        f"lop3.b32 ${i}, {x}, 0x000f000f, {lead:#x}, 0xea;" for i, x in enumerate("abcd")
    )
    return f"""{{ .reg .b32 a, b, c, d;
    prmt.b32 a, $4, 0, 0x4140; prmt.b32 b, $4, 0, 0x4342;
    shr.u32 c, a, 4; shr.u32 d, b, 4;
    {puts} }}"""


_ASM = {torch.bfloat16: _halves(0x43004300), torch.float16: _halves(0x64006400)}
_LEAD = {torch.bfloat16: 128.0, torch.float16: 1024.0}


@triton.jit
def _nibbles(packed, like, ASM: tl.constexpr):
    """The low and the high halves of bytes, as numbers of the dtype at `like`; see `_halves`."""
    kind: tl.constexpr = like.dtype.element_ty
    if ASM != "" and kind == tl.bfloat16:
        return tl.inline_asm_elementwise(
            ASM, "=&r,=&r,=&r,=&r,r", [packed], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    elif ASM != "":
        return tl.inline_asm_elementwise(
            ASM, "=&r,=&r,=&r,=&r,r", [packed], (tl.float16, tl.float16), is_pure=True, pack=4
        )
    else:
        return (packed & 15).to(tl.float32).to(kind), (packed >> 4).to(tl.float32).to(kind)


@triton.jit
def _meet(
    acc, w, scale, least, byte, spot, group, seen, low, high, total, x, there,
    BITS: tl.constexpr, GROUPED: tl.constexpr, LEAST: tl.constexpr, ZERO: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """acc L N R, and what one tile of W adds to it: its numbers at `w + byte`, L N ·, of which
    `ZERO` stands for 0."""
    tile = tl.load(w + byte, mask=there, other=0)
    part = acc
    if GROUPED:
        part = tl.zeros_like(acc)
    if BITS == 4:
        a, b = _nibbles(tile, x, ASM)
        part = tl.dot(a, low, part, input_precision="ieee")
        part = tl.dot(b, high, part, input_precision="ieee") - ZERO * total
    else:
        part = tl.dot(tile.to(x.dtype.element_ty), seen, part, input_precision="ieee")
    if GROUPED:
        at = spot + group
        part = acc + part * tl.load(scale + at).to(tl.float32)
        if LEAST:
            part += total * tl.load(least + at).to(tl.float32)
    return part


@triton.jit
def _rows(
    x, w, g, scale, scale_g, least, least_g, bias, bias_g, norm, norm_bias, more, out, R, N, eps,
    K: tl.constexpr, WIDE: tl.constexpr, NORM: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, SCALED: tl.constexpr, GROUPED: tl.constexpr, LEAST: tl.constexpr,
    ZERO: tl.constexpr, ASM: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr,
    GATED: tl.constexpr, ADDS: tl.constexpr, CHAIN: tl.constexpr, ONE: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, LANES: tl.constexpr,
    AHEAD: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.minimum(n, N - 1).to(tl.int64)
    r, lane = tl.arange(0, ROWS), tl.arange(0, LANES)
    PER: tl.constexpr = 2 if BITS == 4 else 1  # numbers in a byte
    if CHAIN:  # the first weights depend on nobody
        ahead = tl.minimum(tl.arange(0, AHEAD) * LINES, K // PER - 1)
        fetch_ahead(w + row[:, None] * (K // PER) + ahead[None, :])
        if GATED:
            fetch_ahead(g + row[:, None] * (K // PER) + ahead[None, :])
        if SCALED:
            fetch_ahead(scale + row * (K // GROUP))
        gdc_launch_dependents()
        gdc_wait()
    if NORM > 0:
        mean, rstd = _statistics(x, eps, K, WIDE, NORM)
    within = (lane * (INPUTS // PER))[:, None, None] + tl.arange(0, INPUTS // PER)[None, None, :]
    byte = row[None, :, None] * (K // PER) + within
    spot = row[None, :, None] * (K // GROUP)
    feature = (lane * INPUTS)[:, None, None] + tl.arange(0, INPUTS)[None, None, :]  # L 1 INPUTS
    acc = tl.zeros([LANES, OUTPUTS, ROWS], tl.float32)
    acc_g = tl.zeros([LANES, OUTPUTS, ROWS], tl.float32)
    for start in range(0, K, INPUTS * LANES):
        at = start + feature
        if ONE:
            seen = tl.load(x + at, mask=at < K, other=0.0)  # L 1 INPUTS
            if NORM > 0:
                seen = _normed(seen, at, mean, rstd, norm, norm_bias, at < K, NORM)
            total = tl.sum(seen.to(tl.float32), 2)[:, None, :]  # L 1 1: other rows do not matter
            seen = tl.where(r[None, :, None] == 0, seen, 0.0).to(x.dtype.element_ty)
        else:
            here = (at < K) & (r < R)[None, :, None]
            seen = tl.load(x + r[None, :, None] * K + at, mask=here, other=0.0)  # L R INPUTS
            total = tl.sum(seen.to(tl.float32), 2)[:, None, :]  # L 1 R
        low = seen
        high = seen
        if BITS == 4:
            low, high = tl.split(tl.reshape(seen, (LANES, ROWS, INPUTS // 2, 2)))
            low, high = tl.permute(low, (0, 2, 1)), tl.permute(high, (0, 2, 1))
        else:
            seen = tl.permute(seen, (0, 2, 1))  # L INPUTS R
        begin = start + (lane * INPUTS)[:, None, None]
        group = tl.minimum(begin, K - 1) // GROUP
        there = start // PER + within < K // PER
        acc = _meet(
            acc, w + start // PER, scale, least, byte, spot, group, seen, low, high, total, x,
            there, BITS, GROUPED, LEAST, ZERO, ASM,
        )  # fmt: skip
        if GATED:
            acc_g = _meet(
                acc_g, g + start // PER, scale_g, least_g, byte, spot, group, seen, low, high,
                total, x, there, BITS, GROUPED, LEAST, ZERO, ASM,
            )  # fmt: skip
    y, other = tl.sum(acc, 0), tl.sum(acc_g, 0)  # N R
    inside = n < N
    if SCALED and not GROUPED:
        y *= tl.load(scale + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        if GATED:
            other *= tl.load(scale_g + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        if GATED:
            other += tl.load(bias_g + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    at = r[None, :].to(tl.int64) * N + n[:, None]
    _finish(y, other, at, more, out, inside[:, None] & (r < R)[None, :], ACT, GATED, ADDS)


def times_row(
    x: Tensor, matrix: Matrix, norm: Gain | None = None, gate: Matrix | None = None,
    act: str | None = None, more: Tensor | None = None, tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """One row, 1 K → 1 N; of plain weights, or in fp32 of bytes with one scale for an output."""
    outputs, inputs, warps, *_ = tile or tile_of_row(matrix, gate is not None)
    K, N = matrix.inputs, matrix.outputs
    out = x.new_empty(1, N)
    other = gate or matrix
    _row[(triton.cdiv(N, outputs),)](
        x, matrix.numbers, other.numbers, matrix.scale, other.scale, matrix.bias, other.bias,
        *_norm_of(norm), more, out, N, 0.0 if norm is None else norm.eps,
        K=K, WIDE=triton.next_power_of_2(K), NORM=_kind(norm), SCALED=matrix.bits is not None,
        BIAS=matrix.bias is not None, ACT=-1 if act is None else ACTS[act],
        GATED=gate is not None, ADDS=more is not None, OUTPUTS=outputs, INPUTS=inputs,
        num_warps=warps, **launch(chained(x.device)),
    )  # fmt: skip
    return out


def norm_rows(x: Tensor, norm: Gain) -> Tensor:
    """The norm of each row, R K, as `times_row` has it inside."""
    rows, K = x.shape
    out = torch.empty_like(x)
    _norm_rows[(rows,)](
        x, *_norm_of(norm), out, norm.eps, K=K, WIDE=triton.next_power_of_2(K), NORM=_kind(norm),
        num_warps=8, **launch(chained(x.device)),
    )  # fmt: skip
    return out


def times_rows(
    x: Tensor, matrix: Matrix, norm: Gain | None = None, gate: Matrix | None = None,
    act: str | None = None, more: Tensor | None = None, tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """A few rows, R K → R N; a norm before them is that of one row alone."""
    assert norm is None or len(x) == 1, "more rows are normed beforehand"
    tile = tile or tile_of_rows(matrix, len(x), gate is not None)
    K, N, rows = matrix.inputs, matrix.outputs, len(x)
    out = x.new_empty(rows, N)
    other = gate or matrix
    bits = matrix.bits or 16
    group = matrix.group
    fast = bits == 4 and x.is_cuda and x.dtype in _ASM
    zero = (_LEAD[x.dtype] if fast else 0.0) + (8.0 if matrix.least is None else 0.0)
    _rows[(triton.cdiv(N, tile.outputs),)](
        x, matrix.numbers, other.numbers, matrix.scale, other.scale, matrix.least, other.least,
        matrix.bias, other.bias, *_norm_of(norm), more, out, rows, N,
        0.0 if norm is None else norm.eps,
        K=K, WIDE=triton.next_power_of_2(K), NORM=_kind(norm), BITS=bits, GROUP=group,
        SCALED=bits != 16,
        GROUPED=bits == 4 or (bits == 8 and (group < K or matrix.least is not None)),
        LEAST=matrix.least is not None, ZERO=zero, ASM=_ASM[x.dtype] if fast else "",
        BIAS=matrix.bias is not None,
        ACT=-1 if act is None else ACTS[act], GATED=gate is not None, ADDS=more is not None,
        ONE=rows == 1, ROWS=max(tile.rows, triton.next_power_of_2(rows)), OUTPUTS=tile.outputs,
        INPUTS=tile.inputs, LANES=tile.lanes, AHEAD=_AHEAD,
        LINES=LINE // matrix.weight.element_size(), num_warps=tile.warps, num_stages=tile.stages,
        **launch(chained(x.device)),
    )  # fmt: skip
    return out


def tile_of_row(matrix: Matrix, gated: bool) -> Tile:
    """Tiles of 8 to 16 kB, of which several thread blocks of a multiprocessor have two on their
    way: the fastest of `benchmarks/decode_kernels.py --tiles` on an H200."""
    if matrix.bits is None and gated:
        return Tile(16, 256)
    if matrix.bits is None and matrix.inputs % 2048 == 0:
        return Tile(4, 2048, 8)
    return Tile(8, 512) if gated or matrix.outputs <= 8192 else Tile(16, 512)


def tile_of_rows(matrix: Matrix, rows: int, gated: bool) -> Tile:
    """A lane has as many inputs as share a scale, if they are not too many; the fastest of
    `benchmarks/decode_kernels.py --tiles` on an H200."""
    alike = matrix.group & -matrix.group
    inputs = min(128 if matrix.bits else 64, alike)
    if rows == 1 and matrix.bits == 8:  # of many outputs no tensor cores: their layout costs more
        wide = gated or matrix.outputs > 8192
        return Tile(16, min(256, alike), 4, 4, 4, 1) if wide else Tile(32, min(256, alike), 4, 4, 4)
    if rows > 16:  # what is multiplied takes as much room as the weights
        return Tile(32, inputs, 8, 2, 3)
    if gated or matrix.outputs > 8192:  # enough tiles for all multiprocessors
        return Tile(32, inputs, 4, 4, 4)
    # Four bits come so fast that what is done for each row of a tile must serve many outputs.
    return Tile(32, inputs, 8, 8, 3) if matrix.bits == 4 else Tile(16, inputs, 4, 4, 4)


def _kind(norm: Gain | None) -> int:
    return 0 if norm is None else 1 if norm.bias is None else 2


def _norm_of(norm: Gain | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if norm is None else (norm.weight, norm.bias)
