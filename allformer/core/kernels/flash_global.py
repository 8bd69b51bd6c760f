"""A window and global tokens by flash attention, over rows that lie end to end, with dropout.

Flash attention has a window but no mask, so the two parts of a query's softmax are computed apart
and joined by their normalisers: its window by the kernel, which gives lse = log Σ exp(scores); the
global tokens *outside* of it (few) as the formula stands. With both normalisers in one,

    out = exp(lse_window − lse) · out_window + Σ exp(score − lse) · v   over the others,

and the kernel's own backward pass, given the joint lse and the joint output, makes the gradients of
the window's part of the whole softmax.

Legend: R rows, T width of their grid, N tokens end to end, H heads, G key/value heads, D head size,
E the most global tokens of a row, L all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.layout import Layout, Packed


class Rows(NamedTuple):
    """Rows end to end: `starts` R+1 int32, none longer than `width`; `cells` (N) of their grid,
    None where that has no padding."""

    starts: Tensor
    rows: int
    width: int
    cells: Tensor | None = None

    def to_grid(self, x: Tensor) -> Tensor:
        """N … → R T …"""
        if self.cells is None:
            return x.view(self.rows, self.width, *x.shape[1:])
        grid = x.new_zeros(self.rows * self.width, *x.shape[1:])
        return grid.index_copy_(0, self.cells, x).view(self.rows, self.width, *x.shape[1:])

    def lay(self, x: Tensor) -> Tensor:
        """R T … → N …"""
        flat = x.flatten(0, 1)
        return flat if self.cells is None else flat.index_select(0, self.cells)


class Marked(NamedTuple):
    """Global tokens: `tokens` (L) among the N, where each row's `starts` (R+1 int32) among them;
    their columns R E, `real` where there is one."""

    tokens: Tensor
    starts: Tensor
    columns: Tensor
    real: Tensor


class _Window(NamedTuple):
    left: int
    right: int
    scale: float
    dropout: float


def rows_of(layout: Layout, device: torch.device) -> Rows:
    """Of a layout; a grid must be without padding."""
    if isinstance(layout, Packed):
        return Rows(layout.starts, layout.rows, layout.total, layout.cells)
    assert layout.keep is None, "padding between rows"
    ends = layout.width * (layout.rows + 1)
    starts = torch.arange(0, ends, layout.width, dtype=torch.int32, device=device)
    return Rows(starts, layout.rows, layout.width)


def unbroken(layout: Layout) -> bool:
    """Whether tokens that lie side by side stand side by side: no padding inside a row.

    While a step of training is captured nothing can be asked of the device; its rows have none.
    """
    if not isinstance(layout, Packed):
        return layout.keep is None
    if layout.cells.is_cuda and torch.cuda.is_current_stream_capturing():
        return True
    place = layout.cells % layout.total
    apart = place - place.index_select(0, _firsts(layout)) != layout.numbers
    return not bool(apart.any())


def _firsts(layout: Packed) -> Tensor:
    """The first token of each token's row, N."""
    row = layout.cells // layout.total
    return layout.starts.long().index_select(0, row)


def flash_global(
    parts: tuple[Tensor, Tensor, Tensor],
    rows: Rows,
    marked: Marked | None,
    reach: tuple[int, int],
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """q N H D, k and v N G D → N H D: each token's window, and its row's global tokens."""
    apply: Any = _FlashGlobal.apply
    out: Tensor = apply(*parts, rows, marked, _Window(*reach, scale, dropout))
    return out


def flash_whole(
    parts: tuple[Tensor, Tensor, Tensor], rows: Rows, marked: Marked, scale: float, dropout: float
) -> Tensor:
    """The global tokens' own: q L H D look at all of their row, k and v N G D → L H D."""
    most = marked.columns.shape[1]
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *parts, marked.starts, rows.starts, most, rows.width, dropout, False, False, scale=scale
    )[0]
    return out


def _forward(q: Tensor, k: Tensor, v: Tensor, rows: Rows, window: _Window) -> tuple[Tensor, ...]:
    """Output N H D, lse H N, and the two states of its generator."""
    flash = torch.ops.aten._flash_attention_forward
    found: tuple[Tensor, ...] = flash(
        q, k, v, rows.starts, rows.starts, rows.width, rows.width, window.dropout, False, False,
        scale=window.scale, window_size_left=window.left, window_size_right=window.right,
    )  # fmt: skip
    return found[:4]


def _backward(
    grad: Tensor, parts: tuple[Tensor, ...], found: tuple[Tensor, ...], rows: Rows, window: _Window
) -> tuple[Tensor, ...]:
    out, lse, *random = found
    flash = torch.ops.aten._flash_attention_backward
    grads: tuple[Tensor, ...] = flash(
        grad, *parts, out, lse, rows.starts, rows.starts, rows.width, rows.width, window.dropout,
        False, *random, scale=window.scale, window_size_left=window.left,
        window_size_right=window.right,
    )  # fmt: skip
    return grads


class _FlashGlobal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Rows,
        marked: Marked | None,
        window: _Window,
    ) -> Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        out, lse, *random = _forward(q, k, v, rows, window)
        drop = None
        if marked is not None:
            others = _Others(q, k, v, rows, marked, window)
            drop = others.draw()
            out, lse = others.join(out, lse, drop)
        ctx.save_for_backward(q, k, v, out, lse, drop, *random)
        ctx.rows, ctx.marked, ctx.window = rows, marked, window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, out, lse, drop, *random = ctx.saved_tensors
        grad = grads[0].contiguous()
        dq, dk, dv = _backward(grad, (q, k, v), (out, lse, *random), ctx.rows, ctx.window)
        if ctx.marked is not None:
            others = _Others(q, k, v, ctx.rows, ctx.marked, ctx.window)
            dq, dk, dv = others.add(grad, out, lse, drop, (dq, dk, dv))
        return dq, dk, dv, None, None, None


class _Others:
    """Each token's scores with the global tokens that its window leaves out: R H T E."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, marked: Marked, window: _Window
    ) -> None:
        self.rows, self.marked, self.window = rows, marked, window
        self.share = q.shape[1] // k.shape[1]
        self.q = self._wide(q)
        self.k, self.v = self._chosen(k), self._chosen(v)  # R H E D
        place = torch.arange(rows.width, device=q.device)[:, None]
        far = marked.columns[:, None, :] - place  # R T E
        near = (far >= -window.left) & (far <= window.right)
        hidden = (near | ~marked.real[:, None, :])[:, None]  # R 1 T E
        scores = self.q @ self.k.transpose(-2, -1) * window.scale
        self.scores = scores.masked_fill_(hidden, float("-inf"))

    def _wide(self, x: Tensor) -> Tensor:
        """N H D → R H T D, in at least fp32."""
        wide = self.rows.to_grid(x.to(torch.promote_types(x.dtype, torch.float32)))
        return wide.transpose(1, 2)

    def _chosen(self, x: Tensor) -> Tensor:
        """Those of the global tokens, N G D → R H E D; zeros where there is none."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        real = self.marked.real
        out = wide.new_zeros(*real.shape, *x.shape[1:])
        out[real] = wide.index_select(0, self.marked.tokens)
        return out.transpose(1, 2).repeat_interleave(self.share, dim=1)

    def draw(self) -> Tensor | None:
        """Which weights dropout keeps; None: all."""
        if not self.window.dropout:
            return None
        keep = torch.empty(self.scores.shape, dtype=torch.bool, device=self.scores.device)
        return keep.bernoulli_(1 - self.window.dropout)

    def _thin(self, x: Tensor, drop: Tensor | None) -> Tensor:
        return x if drop is None else x * drop / (1 - self.window.dropout)

    def _weights(self, lse: Tensor) -> Tensor:
        """Of the joint softmax; `lse` R H T."""
        return torch.exp(self.scores - lse[..., None])

    def join(self, out: Tensor, lse: Tensor, drop: Tensor | None) -> tuple[Tensor, Tensor]:
        """The joint output N H D and normaliser H N, from those of the window."""
        mine = self._columns(lse)  # R H T
        both = torch.logaddexp(mine, self.scores.logsumexp(-1))
        others = self._thin(self._weights(both), drop) @ self.v
        joint = self._wide(out) * torch.exp(mine - both)[..., None] + others
        return self._lay(joint).to(out.dtype), self._lay(both).T.contiguous()

    def _columns(self, lse: Tensor) -> Tensor:
        """H N → R H T."""
        return self.rows.to_grid(lse.T.contiguous()).transpose(1, 2)

    def _lay(self, x: Tensor) -> Tensor:
        """R H T … → N H …"""
        return self.rows.lay(x.transpose(1, 2))

    def add(
        self,
        grad: Tensor,
        out: Tensor,
        lse: Tensor,
        drop: Tensor | None,
        found: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """The gradients of the window's part, and of these: with P the weights and dP = dO Vᵀ,
        dS = P (dP − dO·O), dQ = dS K · scale, dK = dSᵀ Q · scale, dV = Pᵀ dO."""
        dq, dk, dv = found
        given = self._wide(grad)
        weights = self._weights(self._columns(lse))
        pull = self._thin(given @ self.v.transpose(-2, -1), drop)
        pull = weights * (pull - (given * self._wide(out)).sum(-1, keepdim=True))
        pull = pull * self.window.scale
        dq = dq + self._lay(pull @ self.k).to(dq.dtype)
        dk = self._give(dk, pull.transpose(-2, -1) @ self.q)
        dv = self._give(dv, self._thin(weights, drop).transpose(-2, -1) @ given)
        return dq, dk, dv

    def _give(self, to: Tensor, grad: Tensor) -> Tensor:
        """R H E D, added to the global tokens' among N G D."""
        rows, heads, most, size = grad.shape
        shared = grad.view(rows, heads // self.share, self.share, most, size).sum(2)
        own = shared.transpose(1, 2)[self.marked.real]  # L G D
        return to.index_add(0, self.marked.tokens, own.to(to.dtype))


def marked_tokens(
    layout: Layout, marks: Tensor, columns: Tensor, real: Tensor, cells: Tensor
) -> Marked:
    """Where global tokens (`marks` R T; their `cells` of the grid, L) lie end to end."""
    tokens = cells
    if isinstance(layout, Packed):
        tokens = torch.searchsorted(layout.cells, cells)  # both in the order of the grid
    starts = F.pad(marks.sum(1).cumsum(0), (1, 0)).int()
    return Marked(tokens, starts, columns, real)
