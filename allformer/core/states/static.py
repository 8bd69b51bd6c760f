"""Keys and values in memory of a fixed size, written at places that the device counts itself.

Nothing depends on a number of the host, so a step can be captured as a graph and replayed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.places import Places
from allformer.core.states.state import Cache, State


class Static(State):
    """Room for `room` tokens of each row; slots behind the last token are hidden by causality."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @staticmethod
    def cache(layers: int, room: int, device: torch.device | str | None = None) -> Cache:
        """The states of `layers` layers with one counter."""
        cache = Cache((Static(room) for _ in range(layers)), room)
        cache.length = torch.zeros((), dtype=torch.long, device=device)
        return cache

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        if self._keys is None or self._values is None:
            rows, groups, _, size = k.shape
            self._keys = k.new_zeros(rows, groups, self.room, size)
            self._values = v.new_zeros(rows, groups, self.room, size)
        assert places is not None
        self._keys.index_copy_(2, places.query[0], k)
        self._values.index_copy_(2, places.query[0], v)
        return self._keys, self._values

    def select(self, rows: Tensor) -> None:
        for mine in (self._keys, self._values):
            if mine is not None:
                chosen = mine.index_select(0, rows)
                if len(rows) == len(mine):
                    mine.copy_(chosen)  # where it lies: a captured graph knows its address
                elif mine is self._keys:
                    self._keys = chosen
                else:
                    self._values = chosen

    def cut(self, length: int) -> None:
        """Nothing to do: what stands behind the counter is not looked at."""
