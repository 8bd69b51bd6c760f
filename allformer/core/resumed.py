"""Rows that go on from where each of them stopped: some by one token, some by many.

    layout = resume(past=[7, 0], counts=[1, 5], device=device)    # six tokens, end to end

Norms, projections and feed-forward layers see the tokens alone, without padding; attention sees a
grid as wide as the row that goes on furthest.

Legend: R rows, T width of the grid, N new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from allformer.core.layout import Packed


class Resumed(Packed):
    """Packed rows whose `numbers` go on from what was read before.

    It is a grid to those who ask whether it is packed: kernels for rows that lie end to end know
    nothing of what was read before.
    """

    @property
    def packed(self) -> bool:
        return False

    def positions(self, device: torch.device, count: str = "kept") -> Tensor:
        """The number of each token in its row; there is no padding to count."""
        return self.numbers

    def to_grid(self, x: Tensor) -> Tensor:
        """N … → R T …; where all rows go on by as much, it is so already."""
        rows, width = self.keep.shape
        whole = x.shape[0] == rows * width
        return x.view(rows, width, *x.shape[1:]) if whole else super().to_grid(x)

    def lay(self, x: Tensor) -> Tensor:
        """R T … → N …"""
        whole = self.cells.shape[0] == x.shape[0] * x.shape[1]
        return x.flatten(0, 1) if whole else super().lay(x)


def resume(past: Sequence[int], counts: Sequence[int], device: torch.device) -> Resumed:
    """The layout of `counts` new tokens in each row, behind `past` that were read before."""
    count = torch.tensor(counts)
    width = int(count.max())
    keep = torch.arange(width) < count[:, None]  # R T
    cells = keep.flatten().nonzero().squeeze(1)
    starts = torch.nn.functional.pad(count.cumsum(0), (1, 0)).int()
    numbers = (torch.tensor(past)[:, None] + torch.arange(width)).flatten()[cells]
    keep, cells, starts, numbers = (
        x.to(device, non_blocking=True) for x in (keep, cells, starts, numbers)
    )
    return Resumed(keep, cells, starts, numbers)


def resume_each(past: Tensor) -> Resumed:
    """The layout of one new token in each row; `past` (R) stays where it is: a graph reads it."""
    rows, device = past.shape[0], past.device
    keep = torch.ones(rows, 1, dtype=torch.bool, device=device)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
    return Resumed(keep, torch.arange(rows, device=device), starts, past)
