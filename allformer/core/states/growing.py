"""Keys and values of all tokens so far, in memory that grows with them."""

from __future__ import annotations

from torch import Tensor

from allformer.core.places import Places
from allformer.core.states.paths import Paths
from allformer.core.states.state import State
from allformer.core.states.static import Static

_STEP = 32  # room is made for this many tokens at a time, so that appending does not copy each step


class Growing(State):
    """The usual cache of keys and values."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.length = 0

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        end = self.length + k.shape[2]
        self._keys = self._room(self._keys, k, end)
        self._values = self._room(self._values, v, end)
        self._keys[:, :, self.length : end] = k
        self._values[:, :, self.length : end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _room(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        if old is not None and end <= old.shape[2]:
            return old
        rows, groups, _, size = new.shape
        grown = new.new_empty(rows, groups, -(-end // _STEP) * _STEP, size)
        if old is not None:
            grown[:, :, : self.length] = old[:, :, : self.length]
        return grown

    def held(self) -> tuple[Tensor, Tensor]:
        assert self._keys is not None
        assert self._values is not None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        return Static(room, paths, rows) if type(self) is Growing else None

    def resume(self, fixed: State, rows: Tensor, length: int) -> None:
        assert isinstance(fixed, Static)
        self._keys, self._values = fixed.texts(rows, 0, length)
        self.length = length

    def select(self, rows: Tensor) -> None:
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def cuts(self, length: int) -> bool:
        return True

    def cut(self, length: int) -> None:
        self.length = min(self.length, length)
