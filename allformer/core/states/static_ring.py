"""The last tokens alone, in memory of a fixed size that the device counts through itself.

Place p lies in slot p mod size, until the one `size` places later takes it over. Until the first
round is done, slots are filled in order, and no more of them are looked at than can be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.layout import Grid
from allformer.core.places import Places
from allformer.core.states.paths import Paths
from allformer.core.states.state import State
from allformer.core.states.static import Static


class StaticRing(Static):
    """Keys and values of the last `size` tokens, the new one among them (or of all, if there is
    `room` for fewer); one is read at a time, for it takes the slot of one that the next may not
    look at any more."""

    def __init__(
        self, size: int, room: int, paths: Paths | None = None, rows: int | None = None
    ) -> None:
        super().__init__(min(size, room), paths, rows)
        self.size = size

    def places(self, grid: Grid, device: torch.device) -> Places:
        assert grid.width == 1, "a ring of a fixed size reads one token at a time"
        now = grid.columns(device)  # 1
        slots = torch.arange(min(self.room, grid.total), device=device)
        place = now - (now - slots) % self.room
        # Who is not there yet stands behind the query: causality hides it.
        key = torch.where(place < 0, now + 1, place)
        place = place.clamp_min(0)
        real = None if grid.keep is None else grid.keep.index_select(1, place)
        found = Places(now[None], key[None], real)
        return found if self.paths is None else self.paths.fork(found, place)

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        return StaticRing(self.size, room, paths, rows)

    def _slots(self, place: Tensor) -> Tensor:
        return place % self.room

    def _lay(self, store: Tensor, new: Tensor, other: State) -> None:
        if isinstance(other, Static):  # as large, or its first round is not done
            super()._lay(store, new, other)
            return
        end = other.length  # type: ignore[attr-defined]  # a ring counts on the host
        place = torch.arange(end - new.shape[2], end, device=new.device)[-self.room :]
        store.index_copy_(2, place % self.room * self.beams, new[:, :, -self.room :])

    def cut(self, length: int) -> None:
        State.cut(self, length)
