"""Keys and values in memory of a fixed size, written at places that the device counts itself.

Nothing depends on a number of the host, so a step can be captured as a graph and replayed.

Legend: B rows, K beams of each (1: rows are on their own), G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.layout import Grid
from allformer.core.places import Places
from allformer.core.states.paths import Paths
from allformer.core.states.state import Cache, State


class Static(State):
    """Room for `room` tokens of each row; slots behind the last token are hidden by causality.

    With `paths` the K beams of a row share a store, in which slot s·K + k is what beam k wrote at
    place s; then the rows of new keys are B·K, those to look at B. `rows` is B, if it is not that
    of the first keys.
    """

    def __init__(self, room: int, paths: Paths | None = None, rows: int | None = None) -> None:
        self.room, self.paths, self.rows = room, paths, rows
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @staticmethod
    def cache(layers: int, room: int, device: torch.device | str | None = None) -> Cache:
        """The states of `layers` layers with one counter."""
        cache = Cache((Static(room) for _ in range(layers)), room)
        cache.length = torch.zeros((), dtype=torch.long, device=device)
        return cache

    @property
    def beams(self) -> int:
        """How many rows of new keys share a store."""
        return 1 if self.paths is None else self.paths.beams

    def places(self, grid: Grid, device: torch.device) -> Places:
        places = grid.places(device)
        return places if self.paths is None else self.paths.fork(places)

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        assert places is not None
        keys, values = self._buffers(k, v, len(k) // self.beams)
        at = self._slots(places.query[0])
        if self.paths is not None:
            at = self.paths.slots(at)
            k, v = self.paths.beside(k, len(keys)), self.paths.beside(v, len(keys))
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        seen = places.key.shape[1]  # all, or as many as the layout says that there can be by now
        return keys[:, :, :seen], values[:, :, :seen]

    def _slots(self, place: Tensor) -> Tensor:
        return place

    def _buffers(self, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        if self._keys is None or self._values is None:
            groups, size = k.shape[1], k.shape[3]
            shape = (self.rows or rows, groups, self.room * self.beams, size)
            self._keys, self._values = k.new_zeros(shape), v.new_zeros(shape)
        return self._keys, self._values

    @property
    def memory(self) -> tuple[Tensor, Tensor]:
        """Keys and values as they lie, R G room D: for a kernel that writes the new ones itself."""
        assert self._keys is not None, "a prompt is read first"
        assert self._values is not None
        return self._keys, self._values

    def held(self) -> tuple[Tensor, Tensor]:
        return self.memory

    def texts(self, rows: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
        """What these texts (of B·K) have at places from `first` to `end`: R G S D each."""
        place = torch.arange(first, end, device=rows.device)
        source, beam = rows // self.beams, rows % self.beams
        slots = self._slots(place).expand(len(rows), -1)  # R S
        if self.paths is not None:
            slots = slots * self.beams + self.paths.table[source, beam][:, place]
        at = slots[:, None, :, None]

        def chosen(store: Tensor) -> Tensor:
            index = at.expand(-1, store.shape[1], -1, store.shape[3])
            return store.index_select(0, source).gather(2, index)

        keys, values = self.memory
        return chosen(keys), chosen(values)

    def clear(self) -> None:
        """Forget everything; what is hidden must still be a number."""
        for mine in (self._keys, self._values):
            if mine is not None:
                mine.zero_()

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        return Static(room, paths, rows)

    def take(self, other: State, rows: Tensor | None = None) -> None:
        found = other.held()
        mine = self._buffers(*found, len(found[0]))
        # What another text has left there is hidden, but what is hidden must be a number.
        for store, given in zip(mine, found, strict=True):
            new = given if rows is None else given.index_select(0, rows)
            new = new[:, :, : self.room * self.beams]
            store.zero_()
            self._lay(store[: len(new)], new, other)

    def _lay(self, store: Tensor, new: Tensor, other: State) -> None:
        """Tokens from the first on; those of one text are the first beam's."""
        each = 1 if isinstance(other, Static) else self.beams
        store[:, :, : new.shape[2] * each : each] = new

    def select(self, rows: Tensor) -> None:
        assert self.paths is None, "beams that share a store move by their paths"
        for mine in (self._keys, self._values):
            if mine is not None:
                chosen = mine.index_select(0, rows)
                if len(rows) == len(mine):
                    mine.copy_(chosen)  # where it lies: a captured graph knows its address
                elif mine is self._keys:
                    self._keys = chosen
                else:
                    self._values = chosen

    def cuts(self, length: int) -> bool:
        return True

    def cut(self, length: int) -> None:
        """Nothing to do: what stands behind the counter is not looked at."""
