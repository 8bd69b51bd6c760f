"""The angles of all places, worked out once: a step looks up its own.

Legend: P places, R rows, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Turns(NamedTuple):
    """cos φ and sin φ of places 0 … P − 1, P D/2; `where` are the places of the new tokens, R or 1
    (None: the counter itself)."""

    cos: Tensor
    sin: Tensor
    where: Tensor | None = None

    def turned(self, x: Tensor, past: Tensor) -> Tensor:
        """Heads R · D, their halves turned as pairs."""
        where = past.view(1) if self.where is None else self.where
        cos, sin = (table[where][:, None] for table in (self.cos, self.sin))  # R 1 D/2
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
