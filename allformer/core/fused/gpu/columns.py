"""The sum of each column of a tall matrix, in two steps whose order is fixed.

Legend: N rows, D columns, P programs along the rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS, _WARPS = 128, 64, 4
_PROGRAMS = 1056  # eight for each multiprocessor of a large chip


@triton.jit
def _columns(x, out, N, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(N, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS)
        begin = tl.cast(tile * ROWS, tl.int64) * D
        at = tl.arange(0, ROWS)[:, None] * D + column[None, :]
        there = (row < N)[:, None] & inside[None, :]
        acc += tl.load(x + begin + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(1) * D + column, tl.sum(acc, 0), mask=inside)


@torch.library.custom_op("allformer::column_sums", mutates_args=())
def column_sums(x: Tensor) -> Tensor:
    """N D → D in fp32."""
    x = x.contiguous()
    count, width = x.shape
    blocks = triton.cdiv(width, _COLUMNS)
    programs = max(1, min(_PROGRAMS // blocks, triton.cdiv(count, _ROWS)))
    part = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    grid = {"ROWS": _ROWS, "COLUMNS": _COLUMNS, "num_warps": _WARPS}
    _columns[(blocks, programs)](x, part, count, width, **grid)
    if programs == 1:
        return part.view(width)
    out = torch.empty(1, width, dtype=torch.float32, device=x.device)
    _columns[(blocks, 1)](part, out, programs, width, **grid)
    return out.view(width)


@column_sums.register_fake
def _(x):
    return x.new_empty(x.shape[1], dtype=torch.float32)
