"""Positions of patches in a plane: a table that is interpolated for other sizes, or a formula.

Legend: H rows and W columns of patches, F tokens before them, E tokens behind, D model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.position import sinusoid
from allformer.core.precision import widen
from allformer.core.registry import implements


@implements(config.LearnedPlane)
class LearnedPlane(nn.Module):
    """A trained vector for each token before the patches and behind them, and for each cell of the
    plane; with `layers`, such a table for each of them."""

    def __init__(self, position: config.LearnedPlane, dim: int, layers: int | None = None) -> None:
        super().__init__()
        self.config = position
        many = () if layers is None else (layers,)
        self.weight = nn.Parameter(torch.empty(*many, position.trained, dim))

    def reset_parameters(self) -> None:
        """N(0, 0.02²), as the ViT paper starts them (appendix D.4)."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, shape: tuple[int, int], front: int, like: Tensor) -> Tensor:
        """The vectors of `front` tokens, of a plane of this shape, and of those behind,
        (layers) F+H·W+E D."""
        if shape == self.config.shape:
            return self.weight.to(like.dtype)
        tables = self.weight.view(-1, *self.weight.shape[-2:])
        counts = [front, tables.shape[1] - front - self.config.behind, self.config.behind]
        before, cells, behind = torch.split(tables, counts, 1)
        # Half precision would shift them: DINOv2 computes this in fp32, and so do we for all.
        grid = widen(cells).view(len(tables), *self.config.shape, -1).permute(0, 3, 1, 2)  # … D H W
        grid = F.interpolate(
            grid, shape, mode="bicubic", align_corners=False, antialias=self.config.antialias
        )
        cells = grid.flatten(2).transpose(1, 2)  # … H·W D
        both = torch.cat([x.to(like.dtype) for x in (before, cells, behind)], 1)
        return both.view(*self.weight.shape[:-2], *both.shape[1:])


@implements(config.SinusoidalPlane)
class SinusoidalPlane(nn.Module):
    """Sines and cosines of column and row: no parameters, and any size."""

    def __init__(self, position: config.SinusoidalPlane, dim: int) -> None:
        super().__init__()
        self.config, self.dim = position, dim

    def forward(self, shape: tuple[int, int], front: int, like: Tensor) -> Tensor:
        """Zeros for `front` tokens, then the vectors of a plane of this shape, F+H·W D."""
        rows, columns = (self._along(size, like) for size in shape)  # H D/2, W D/2
        plane = torch.cat(
            [columns.repeat(len(rows), 1), rows.repeat_interleave(len(columns), 0)], 1
        )
        return torch.cat([plane.new_zeros(front, self.dim), plane]).to(like.dtype)

    def _along(self, size: int, like: Tensor) -> Tensor:
        """The numbers of an axis, in half of the features."""
        wide = torch.promote_types(like.dtype, torch.float32)
        where = torch.arange(size, device=like.device)
        half = self.dim // 2
        return sinusoid(where, half, layout="halves", base=self.config.base, dtype=wide)
