"""Beams that keep what they write in one store: which of them wrote what each has behind it.

A beam that goes on from another takes its past over. Copying that past costs as much as reading it;
here every key stays where it was written, and a table says whose it is. A step reads the store of
all beams of a row once, and each beam looks at the keys on its own path alone.

Legend: B rows, K beams of each, S places, T new tokens (one: beams go step by step).
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.places import Places

MOST = 16  # beams: each is compared with the keys of all of its row, which is work of K² S


class Paths:
    """`table` B K S: the beam that wrote what beam k has at place s. One for all layers.

    At first all beams go on from what the first one has: the prompt is stored once.
    """

    def __init__(self, rows: int, beams: int, room: int, device: torch.device) -> None:
        self.beams = beams
        self.table = torch.zeros(rows, beams, room, dtype=torch.int8, device=device)
        self.own = torch.arange(beams, device=device)

    def begin(self) -> None:
        """All of every row is the first beam's."""
        self.table.zero_()

    def take(self, other: Paths, rows: Tensor) -> None:
        """Go on from these rows of another table, whose places may be more or fewer."""
        self.begin()
        end = min(self.table.shape[2], other.table.shape[2])
        self.table[: len(rows), :, :end] = other.table.index_select(0, rows)[..., :end]

    def move(self, beam: Tensor) -> None:
        """Beam k of each row goes on from `beam[b, k]`; nothing else is moved."""
        index = beam[..., None].expand(self.table.shape)
        self.table.copy_(self.table.gather(1, index))  # where it lies: a graph knows its address

    def slots(self, place: Tensor) -> Tensor:
        """Where each beam writes at `place` (K, all alike): the beams of a place lie together."""
        return place * self.beams + self.own

    def fork(self, places: Places, place: Tensor | None = None) -> Places:
        """The places of a whole row's beams, from those of one: a query for each beam, and each
        key K times. `place` (S) is where the store's slots stand, if not one after the other."""
        query, key = places.query[0], places.key
        assert len(query) == 1, "beams read one token at a time"
        now = self.own.to(torch.int8)[None, :, None].expand(len(self.table), -1, 1)
        self.table.index_copy_(2, query, now)  # the new token is everybody's own
        table = self.table[..., : key.shape[1]] if place is None else self.table[..., place]
        path = (table[..., None] == self.own).flatten(2)  # B K S·K
        wide = None if places.real is None else places.real.repeat_interleave(self.beams, 1)
        return Places(
            query.expand(1, self.beams), key.repeat_interleave(self.beams, 1), wide, path=path
        )

    @staticmethod
    def beside(q: Tensor, rows: int) -> Tensor:
        """Queries of B·K rows, each H 1 D, as K queries of B rows: B H K D."""
        _, heads, _, size = q.shape
        return q.reshape(rows, -1, heads, size).transpose(1, 2)
