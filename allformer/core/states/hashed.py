"""What attention by hashes remembers: tokens, and the buckets that they are in.

Legend: B rows, H heads, R rounds of hashing, S tokens so far, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from allformer.core.states.state import State


class Hashes(NamedTuple):
    """Random directions, H D R N/2, and the factors of the number of buckets N that they tell."""

    turns: Tensor
    factors: tuple[int, ...]


class Hashed(State):
    """`qk` (query and key in one) and `v`, each B H S D; once tokens are hashed, their `buckets`
    (B H R S) and the `hashes` that told them, which stay: else they would mean nothing for new
    tokens."""

    pieces = False  # tokens read at once are sorted among themselves, a later one among all

    def __init__(self) -> None:
        self.qk: Tensor | None = None
        self.v: Tensor | None = None
        self.buckets: Tensor | None = None
        self.hashes: Hashes | None = None
        self.since = 0  # how many tokens there were when the hashes were chosen

    def append(self, qk: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Remember new tokens; all of them."""
        if self.qk is not None and self.v is not None:
            qk, v = torch.cat([self.qk, qk], 2), torch.cat([self.v, v], 2)
        self.qk, self.v = qk, v
        return qk, v

    def select(self, rows: Tensor) -> None:
        for name in ("qk", "v", "buckets"):
            mine = getattr(self, name)
            if mine is not None:
                setattr(self, name, mine.index_select(0, rows))

    def cuts(self, length: int) -> bool:
        return True

    def cut(self, length: int) -> None:
        if length < self.since:  # then nothing had been hashed yet
            self.buckets, self.hashes, self.since = None, None, 0
        if self.qk is not None and self.v is not None:
            self.qk, self.v = self.qk[:, :, :length], self.v[:, :, :length]
        if self.buckets is not None:
            self.buckets = self.buckets[..., :length]
