"""Attention of short rows that lie end to end, straight from the fused projections.

Training only, on a GPU. The kernel is `fused/gpu/rows.py`.

Legend: R rows, N queries, M keys, H heads, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from allformer.core.fused import HALF, has_triton
from allformer.core.fused.norm import NOTHING, Thinning
from allformer.core.fused.random import draw
from allformer.core.kernels.kernel import Case, Plan, Rows
from allformer.core.layout import Layout, Packed
from allformer.core.taps import listening

if TYPE_CHECKING:
    from allformer.core.mixers.mixer import Scene

LONGEST = 128  # usual rows beyond are flash's: its tiles are full
SIZES = (16, 32, 64, 128)


class ShortRows:
    """Half precision, a key head for each query head, rows of at most 128 tokens on average."""

    ragged = True
    whole = True

    def fits(self, case: Case) -> bool:
        short = 0 < case.length <= LONGEST and case.full and not case.grouped
        half = case.dtype in HALF and case.size in SIZES
        return short and half and case.asked == "fast" and case.device.type == "cuda"

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        raise NotImplementedError("it takes projections whole: `short_rows`")


def usual_length(scene: Scene) -> int:
    """Tokens of a usual row when somebody learns from rows that lie end to end; else 0."""
    compiling = torch.compiler.is_compiling()
    if not torch.is_grad_enabled() or scene.cached or listening() or compiling or not has_triton():
        return 0
    return max(_usual(scene.query), _usual(scene.key))


def _usual(layout: Layout) -> int:
    if isinstance(layout, Packed):
        return max(1, layout.cells.shape[0] // layout.rows)
    whole = layout.keep is None and isinstance(layout.past, int) and layout.past == 0
    return layout.width if whole else LONGEST + 1


def rows_of(scene: Scene) -> Rows:
    """Where the rows of queries and keys begin."""
    query = _starts(scene.query, scene.device)
    key = None if scene.key is scene.query else _starts(scene.key, scene.device)
    return Rows(query, key, scene.key.total)


def _starts(layout: Layout, device: torch.device) -> Tensor:
    if isinstance(layout, Packed):
        return layout.starts
    ends = layout.width * (layout.rows + 1)
    return torch.arange(0, ends, layout.width, dtype=torch.int32, device=device)


def short_rows(
    x: Tensor,
    memory: Tensor | None,
    plan: Plan,
    shape: tuple[int, int, float],
    thinning: Thinning = NOTHING,
) -> Tensor:
    """x … 3·H·D, or queries … H·D and memory … 2·H·D → the context … H·D.

    `shape` is H, D and the scale. The plain forms are the other kernels.
    """
    rows = plan.rows
    assert rows is not None
    dropout, seed, site = thinning
    if dropout and seed is None:
        seed = draw(1, x.device)[0]
    heads, size, scale = shape
    flat = x.reshape(-1, x.shape[-1])
    other = None if memory is None else memory.reshape(-1, memory.shape[-1])
    numbers = (heads, size, plan.causal, scale, rows.width, block_for(plan.length))
    apply: Any = _ShortRows.apply
    out: Tensor = apply(flat, other, rows.query, rows.key, numbers, seed, site, dropout)
    return out.view(*x.shape[:-1], heads * size)


def block_for(length: int) -> int:
    """The tile: most rows fit it."""
    return 32 if length <= 24 else 64 if length <= 64 else 128


class _ShortRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        memory: Tensor | None,
        starts: Tensor,
        starts_k: Tensor | None,
        numbers: tuple[int, int, bool, float, int, int],
        seed: Tensor | None,
        site: int,
        dropout: float,
    ) -> Tensor:
        from allformer.core.fused.gpu import rows

        more = (*numbers, seed, site, dropout)
        out: Tensor
        out, lse = rows.short_rows(x, memory, starts, starts_k, *more)
        ctx.save_for_backward(x, memory, starts, starts_k, out, lse, seed)
        ctx.numbers, ctx.site, ctx.dropout = numbers, site, dropout
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu import rows

        *saved, seed = ctx.saved_tensors
        more = (*ctx.numbers, seed, ctx.site, ctx.dropout)
        dx, d_memory = rows.short_rows_backward(grads[0], *saved, *more)
        of_memory = None if saved[1] is None else d_memory
        return dx, of_memory, None, None, None, None, None, None
