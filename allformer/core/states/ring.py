"""The last tokens alone: constant memory for layers that look no further back."""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.layout import Grid
from allformer.core.places import Places
from allformer.core.states.paths import Paths
from allformer.core.states.state import State
from allformer.core.states.static_ring import StaticRing


class Ring(State):
    """Keys and values of the last `size` tokens; older ones make room, in order.

    A few more are kept where the last ones may have to be forgotten again (`spare`).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.more = 0  # tokens beyond `size`, out of reach of the last query
        self.length = 0  # tokens seen
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def _held(self) -> int:
        return 0 if self._keys is None else self._keys.shape[2]

    def places(self, grid: Grid, device: torch.device) -> Places:
        first = self.length - self._held
        whole = grid.places(device)
        if not first:
            return whole
        real = None if whole.real is None else whole.real[:, first:]
        return Places(whole.query, whole.key[:, first:], real, last=whole.last, tail=whole.tail)

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        if self._keys is not None and self._values is not None:
            k = torch.cat([self._keys, k], dim=2)
            v = torch.cat([self._values, v], dim=2)
        self.length += k.shape[2] - self._held
        first = max(0, k.shape[2] - self.size - self.more)
        # copies: a view would keep the whole prompt alive
        self._keys, self._values = k[:, :, first:].clone(), v[:, :, first:].clone()
        return k, v

    def held(self) -> tuple[Tensor, Tensor]:
        assert self._keys is not None
        assert self._values is not None
        return self._keys, self._values

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        return StaticRing(self.size + 1, room, paths, rows) if type(self) is Ring else None

    def resume(self, fixed: State, rows: Tensor, length: int) -> None:
        assert isinstance(fixed, StaticRing)
        self._keys, self._values = fixed.texts(rows, max(0, length - self.size), length)
        self.length = length

    def select(self, rows: Tensor) -> None:
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def spare(self, tokens: int) -> None:
        self.more = tokens

    def cuts(self, length: int) -> bool:
        """What stood before the ring is gone: enough must be left for the next query."""
        left = self._held - max(0, self.length - length)
        return length >= self.length or left >= min(length, self.size)

    def cut(self, length: int) -> None:
        if self._keys is None or self._values is None or length >= self.length:
            return
        if not self.cuts(length):
            super().cut(length)
        lost = self.length - length
        self._keys, self._values = self._keys[:, :, :-lost], self._values[:, :, :-lost]
        self.length = length
