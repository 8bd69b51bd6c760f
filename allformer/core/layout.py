"""How the tokens of a batch lie in memory: a grid with padding, or packed without.

Norms, projections and feed-forward layers act on each token alone, so they take either form; only
attention needs to know which token belongs to which row. Packed, nothing is computed for padding.

Legend: R rows (sentences), T width of the grid, N tokens that are not padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer import config
from allformer.core.masks import (
    Look,
    causal_mask,
    combine,
    make_look,
    padding_mask,
    window_mask,
)


class Grid(NamedTuple):
    """Tokens as R T. `keep` (R S, True = real) covers `past` cached tokens too; None: all real."""

    rows: int
    width: int
    keep: Tensor | None = None
    past: int = 0

    @property
    def total(self) -> int:
        """Cached tokens and new ones together: the number of keys."""
        return self.past + self.width

    def positions(self, device: torch.device, count: str = "kept") -> Tensor:
        """The number of each token in its own sentence: padding on the left does not count.

        `count="all"`: padding counts too.
        """
        if self.keep is None or count == "all":
            return torch.arange(self.past, self.total, device=device)  # T
        counted = self.keep.long().cumsum(-1).sub(1).clamp_min(0)
        return counted[:, self.past :]  # R T


class Packed(NamedTuple):
    """Tokens as N, row after row. Everything that attention needs to find the rows again."""

    keep: Tensor  # R T, True where a token stands
    cells: Tensor  # N, where each token stands in the flattened grid
    starts: Tensor  # R+1 int32, where each row begins among the N tokens
    places: Tensor  # N, the number of each token in its own row

    @property
    def total(self) -> int:
        """The width of the grid: no row is longer."""
        return self.keep.shape[1]

    def positions(self, device: torch.device, count: str = "kept") -> Tensor:
        """The number of each token in its own sentence; `count="all"`: in its row of the grid."""
        return self.cells % self.total if count == "all" else self.places

    def to_grid(self, x: Tensor) -> Tensor:
        """N … → R T …, zeros where there is no token."""
        rows, width = self.keep.shape
        grid: Tensor = _to_grid(x, self.cells, rows * width)
        return grid.view(rows, width, *x.shape[1:])

    def to_packed(self, x: Tensor) -> Tensor:
        """R T … → N …"""
        packed: Tensor = _to_packed(x.flatten(0, 1), self.cells)
        return packed


class _ToGrid(torch.autograd.Function):
    """Its backward is `_ToPacked` and the other way round: each cell is used once, so gradients
    are moved, not summed as autograd would have to for any index."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cells: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(cells)
        grid = x.new_zeros(size, *x.shape[1:])
        if torch.compiler.is_compiling():  # writes in place by itself; told to, torch 2.11 gives
            return grid.index_copy(0, cells, x)  # a gradient of zero
        return grid.index_copy_(0, cells, x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (cells,) = ctx.saved_tensors
        return _to_packed(grads[0], cells), None, None


class _ToPacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        ctx.size = grid.shape[0]
        return grid.index_select(0, cells)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (cells,) = ctx.saved_tensors
        return _to_grid(grads[0], cells, ctx.size), None


_to_grid: Any = _ToGrid.apply
_to_packed: Any = _ToPacked.apply

Layout = Grid | Packed


def pack(keep: Tensor) -> Packed:
    """The packed layout of a grid's `attention_mask` (R T); padding may be on either side."""
    keep = keep.bool()
    cells = keep.flatten().nonzero().squeeze(1)
    lengths = keep.sum(-1)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    places = (keep.long().cumsum(-1) - 1).flatten()[cells]
    return Packed(keep, cells, starts, places)


class RaggedLook(NamedTuple):
    """Who may look at whom when tokens are packed: only within the row, and backwards if causal."""

    query: Packed
    key: Packed
    causal: bool
    kernel: str = "fast"
    dense: Look | None = None  # the same as a mask over the grids


def self_look(
    layout: Layout,
    causal: bool,
    device: torch.device,
    kernel: str = "fast",
    mixer: config.Mixer | None = None,
    bias: Tensor | None = None,
) -> Look | RaggedLook:
    """What self-attention may see in this layout; `bias` (1 H T S) lies on the grid."""
    window = mixer if isinstance(mixer, config.Window) else None
    if isinstance(layout, Packed):
        plain = window is None and bias is None
        look = _ragged_look(layout, layout, causal, kernel, moved=plain)
        if plain:
            return look
        # No kernel for ragged rows takes these: attention runs on the grid.
        return look._replace(
            dense=_narrow(look.dense or grid_look(look), layout, window, bias, device)
        )
    return _narrow(_grid_self_look(layout, causal, device, kernel), layout, window, bias, device)


def _narrow(
    look: Look,
    layout: Layout,
    window: config.Window | None,
    bias: Tensor | None,
    device: torch.device,
) -> Look:
    """The same looking within a window, and with a bias on the scores."""
    width = layout.width if isinstance(layout, Grid) else layout.total
    if window is not None:
        band = window_mask(width, layout.total, window.left, window.right, device)
        look = make_look(combine(band, look.mask), look.causal, look.kernel)
    return look if bias is None else look.biased(bias)


def _grid_self_look(layout: Grid, causal: bool, device: torch.device, kernel: str) -> Look:
    if layout.keep is None and (layout.past == 0 or layout.width == 1):
        return Look(causal=causal and layout.width > 1, kernel=kernel)
    if layout.keep is None:
        # several tokens after a cache: the triangle is shifted to the right
        mask = causal_mask(layout.width, layout.total, device) if causal else None
        return Look(mask, kernel=kernel)
    return make_look(_grid_mask(layout.keep, layout.width, causal), kernel=kernel)


def _ragged_look(
    query: Packed, key: Packed, causal: bool, kernel: str, moved: bool = True
) -> RaggedLook:
    """`moved`: the grid for attention may be another than the caller's."""
    if query.keep.is_cuda:  # has a kernel for ragged rows and needs no mask
        return RaggedLook(query, key, causal, kernel)
    if moved and not torch.compiler.is_compiling():  # its width depends on the lengths
        near = compact(query)
        query, key = near, near if key is query else compact(key)
    look = RaggedLook(query, key, causal, kernel)
    return look._replace(dense=grid_look(look))  # one mask for all layers


def compact(layout: Packed) -> Packed:
    """The same tokens on the smallest grid: rows moved to the left, as wide as the longest."""
    lengths = layout.starts.diff().long()
    width = int(lengths.max())
    if width in (0, layout.total):
        return layout
    rows = torch.repeat_interleave(lengths)
    places = torch.arange(len(rows), device=rows.device) - layout.starts[rows]
    keep = torch.arange(width, device=rows.device) < lengths[:, None]
    return Packed(keep, rows * width + places, layout.starts, places)


def grid_look(look: RaggedLook) -> Look:
    """The same looking, as a mask over the two grids."""
    mask = _grid_mask(look.key.keep, look.query.total, look.causal)
    return make_look(mask, kernel=look.kernel)


def _grid_mask(keep: Tensor, targets: int, causal: bool) -> Tensor:
    triangle = causal_mask(targets, keep.shape[1], keep.device) if causal else None
    mask = combine(padding_mask(keep), triangle)
    assert mask is not None
    return mask


def cross_look(query: Layout, key: Layout, kernel: str = "fast") -> Look | RaggedLook:
    """What cross-attention may see: every real token of the other side's row."""
    if isinstance(query, Packed) and isinstance(key, Packed):
        return _ragged_look(query, key, False, kernel)
    assert isinstance(query, Grid), "one side packed, the other not: bring both to one layout"
    assert isinstance(key, Grid), "one side packed, the other not: bring both to one layout"
    return make_look(None if key.keep is None else padding_mask(key.keep), kernel=kernel)
