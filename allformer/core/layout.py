"""How the tokens of a batch lie in memory: a grid with padding, or packed without.

Norms, projections and feed-forward layers act on each token alone, so they take either form; only
attention needs to know which token belongs to which row. Packed, nothing is computed for padding.
Both answer the same questions.

Legend: R rows (sentences), T width of the grid, S columns with what is cached, N real tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.places import Places


class Ahead(NamedTuple):
    """Learned keys before the first token of each row: `most`, or of row r `rows[r]` of them, the
    last ones. Tokens are numbered as if they followed as many others."""

    most: int
    rows: Tensor | None = None  # R


class Grid(NamedTuple):
    """Tokens as R T. `keep` (R S, True = real) covers what is cached too; None: all real.

    `past` tokens came before: a number, or a counter on the device, in which case `room` is how
    many columns there can be at most.
    """

    rows: int
    width: int
    keep: Tensor | None = None
    past: int | Tensor = 0
    room: int | None = None
    ahead: Ahead | None = None

    @property
    def packed(self) -> bool:
        """Whether padding was left out."""
        return False

    def behind(self, numbers: Tensor) -> Tensor:
        """Numbers of tokens, T or R T, with what stands ahead of them counted."""
        if self.ahead is None:
            return numbers
        most, rows = self.ahead
        return numbers + (most if rows is None else rows[:, None])

    @property
    def total(self) -> int:
        """No place is this high: cached tokens and new ones together."""
        if self.room is not None:
            return self.room
        assert isinstance(self.past, int), "a counter on the device needs Grid.room"
        return self.past + self.width

    def places(self, device: torch.device) -> Places:
        """Every column up to the last new one is a key."""
        query, key = self.columns(device)[None], torch.arange(self.total, device=device)[None]
        told = isinstance(self.past, int)
        found = Places(query, key, self.keep, self.keep is None and told, told and self.width == 1)
        return found._replace(tail=told)

    def columns(self, device: torch.device) -> Tensor:
        """The places of the new tokens, T."""
        if isinstance(self.past, int):
            return torch.arange(self.past, self.past + self.width, device=device)
        return self.past + torch.arange(self.width, device=device)

    def positions(self, device: torch.device, count: str = "kept") -> Tensor:
        """The number of each token in its own sentence: padding on the left does not count.

        `count="all"`: padding counts too.
        """
        if self.keep is None or count == "all":
            return self.columns(device)  # T
        counted = self.keep.long().cumsum(-1).sub(1).clamp_min(0)
        if isinstance(self.past, int):
            return counted[:, self.past : self.past + self.width]  # R T
        return counted.index_select(1, self.columns(device))

    def row_numbers(self, device: torch.device) -> Tensor:
        """The row of each token, R 1."""
        return torch.arange(self.rows, device=device)[:, None]

    def first(self, count: int) -> Grid:
        """The layout of each row's first tokens alone."""
        keep = None if self.keep is None else self.keep[:, :count]
        return Grid(self.rows, count, keep, ahead=self.ahead)

    def lay(self, x: Tensor) -> Tensor:
        """R T … as it is."""
        return x

    def to_grid(self, x: Tensor) -> Tensor:
        """R T … as it is."""
        return x


class Packed(NamedTuple):
    """Tokens as N, row after row. Everything that attention needs to find the rows again."""

    keep: Tensor  # R T, True where a token stands
    cells: Tensor  # N, where each token stands in the flattened grid
    starts: Tensor  # R+1 int32, where each row begins among the N tokens
    numbers: Tensor  # N, of each token in its own row
    ahead: Ahead | None = None

    @property
    def packed(self) -> bool:
        """Whether padding was left out."""
        return True

    @property
    def rows(self) -> int:
        """Rows of the grid."""
        return self.keep.shape[0]

    @property
    def total(self) -> int:
        """The width of the grid: no row is longer."""
        return self.keep.shape[1]

    def positions(self, device: torch.device, count: str = "kept") -> Tensor:
        """The number of each token in its own sentence; `count="all"`: in its row of the grid."""
        return self.cells % self.total if count == "all" else self.numbers

    def behind(self, numbers: Tensor) -> Tensor:
        """Numbers of tokens, N, with what stands ahead of them counted."""
        assert self.ahead is None or self.ahead.rows is None, "rows that differ are not packed"
        return numbers if self.ahead is None else numbers + self.ahead.most

    def row_numbers(self, device: torch.device) -> Tensor:
        """The row of each token, N."""
        return self.cells // self.total

    def places(self, device: torch.device) -> Places:
        """Of the grid that the tokens were packed from."""
        columns = torch.arange(self.total, device=device)[None]
        return Places(columns, columns, self.keep, tail=True)

    def to_grid(self, x: Tensor) -> Tensor:
        """N … → R T …, zeros where there is no token."""
        rows, width = self.keep.shape
        grid: Tensor = _to_grid(x, self.cells, rows * width)
        return grid.view(rows, width, *x.shape[1:])

    def lay(self, x: Tensor) -> Tensor:
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
    numbers = (keep.long().cumsum(-1) - 1).flatten()[cells]
    return Packed(keep, cells, starts, numbers)


def compact(layout: Packed) -> Packed:
    """The same tokens on the smallest grid: rows moved to the left, as wide as the longest."""
    lengths = layout.starts.diff().long()
    width = int(lengths.max())
    if width in (0, layout.total):
        return layout
    rows = torch.repeat_interleave(lengths)
    numbers = torch.arange(len(rows), device=rows.device) - layout.starts[rows]
    keep = torch.arange(width, device=rows.device) < lengths[:, None]
    return Packed(keep, rows * width + numbers, layout.starts, numbers, layout.ahead)
