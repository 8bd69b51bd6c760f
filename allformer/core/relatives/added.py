"""Positions that are added to what queries and keys are made of, in every layer (DETR)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from allformer.core.relatives.relative import Relation

EPS = 1e-6


class Added(Relation):
    """`own` is added before queries and keys are projected, `other` before the keys of what is
    looked at across; values are as they were. Both … T dim."""

    def __init__(self, own: Tensor, other: Tensor | None = None) -> None:
        self.own, self.other = own, other


def plane_sines(keep: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines of each cell's row in the first half of `dim`, of its column in the second,
    B H·W dim. Cells are counted among those of the image (`keep`, B H W), whose last one is at 2π,
    whatever its size."""
    wide = torch.promote_types(dtype, torch.float32)
    return torch.cat([_along(keep.to(wide), axis, dim // 2) for axis in (1, 2)], -1).to(dtype)


def _along(keep: Tensor, axis: int, half: int) -> Tensor:
    where = keep.cumsum(axis)
    last = where.select(axis, -1).unsqueeze(axis)
    where = where / (last + EPS) * (2 * math.pi)
    power = torch.arange(half // 2, dtype=keep.dtype, device=keep.device) * (2 / half)
    angle = where[..., None] / 10_000**power  # B H W half/2
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(3).flatten(1, 2)
