"""Positions from tables that are worked out once: vectors, turns and biases.

vectors = Vectors(source)(past, new, numbers)     # added to the embedding: (A or 1) M dim
turns = Turns(rotary, dtype)                      # queries and keys
biases = Biases(buckets, dtype)                   # T5's
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.relatives.bucket import bucket

_FIRST = 256  # rows of a table at first; then twice as many


class Table:
    """Rows for the positions 0, 1, …, as many as are asked for."""

    def __init__(self) -> None:
        self.rows: tuple[Tensor, ...] = ()

    def make(self, positions: Tensor) -> tuple[Tensor, ...]:
        """The rows of these positions."""
        raise NotImplementedError

    def upto(self, end: int) -> tuple[Tensor, ...]:
        """At least so many."""
        if not self.rows or len(self.rows[0]) < end:
            self.rows = self.make(torch.arange(max(_FIRST, 2 * end)))
        return self.rows

    def at(self, past: int, new: int, numbers: Tensor | None) -> tuple[Tensor, ...]:
        """Of `new` tokens behind `past` others, or of those whose `numbers` (A N) are told."""
        rows = self.upto(past + new)
        if numbers is None:
            return tuple(x[past : past + new] for x in rows)
        return tuple(x[numbers] for x in rows)


class Vectors(Table):
    """What a position adds to the embedding."""

    def __init__(self, position: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.position, self.dtype = position, dtype
        if hasattr(position, "weight"):
            first = getattr(position.config, "offset", 0)
            self.rows = (position.weight.detach()[first:],)

    def make(self, positions: Tensor) -> tuple[Tensor, ...]:
        return (self.position(positions, None, self.dtype),)


class Turns(Table):
    """cos φ and sin φ of a rotary position over a whole head: (cos, cos) and (−sin, sin)."""

    def __init__(self, relative: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.relative, self.dtype = relative, dtype

    def make(self, positions: Tensor) -> tuple[Tensor, ...]:
        turn = self.relative(positions, self.dtype)
        return torch.cat([turn.cos, turn.cos], -1), torch.cat([-turn.sin, turn.sin], -1)


def turn(heads: Tensor, turns: tuple[Tensor, ...]) -> Tensor:
    """A M heads D → the same, turned: x cos φ + (x₂, x₁) (−sin φ, sin φ)."""
    cos, sin = (x.unsqueeze(-2) for x in turns)
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


class Biases(Table):
    """T5's bias of each head for a key so many tokens back."""

    def __init__(self, relative: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.relative, self.dtype = relative, dtype

    def make(self, positions: Tensor) -> tuple[Tensor, ...]:
        c = self.relative.config
        cells = bucket(-positions, c.buckets, c.max_distance, both_sides=False)
        return (self.relative.weight.detach()[cells].to(self.dtype),)

    def between(self, query: Tensor, key: Tensor) -> Tensor:
        """Places N and C → H N C."""
        back = (query[:, None] - key).clamp_min(0)
        (rows,) = self.upto(int(key.shape[0]) + 1)
        return rows[back].permute(2, 0, 1)
