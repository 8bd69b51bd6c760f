"""A state of fixed size that a layer carries along and rewrites: sums of linear attention."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from allformer.core.states.paths import Paths
from allformer.core.states.state import State


class Recurrent(State):
    """Named tensors with a row for each row of the batch; the mixer reads and writes them."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        plain = type(self) is Recurrent and paths is None
        return StaticRecurrent(rows) if plain else None

    def resume(self, fixed: State, rows: Tensor, length: int) -> None:
        assert isinstance(fixed, StaticRecurrent)
        self.values = {name: x.index_select(0, rows) for name, x in fixed.values.items()}

    def select(self, rows: Tensor) -> None:
        for name, x in self.values.items():
            self.values[name] = x.index_select(0, rows)


class _Still(dict[str, Tensor]):
    """Tensors that stay where they are: what is put under a name is copied there."""

    def __setitem__(self, name: str, x: Tensor) -> None:
        if name in self:
            self[name].copy_(x)
        else:
            super().__setitem__(name, x.clone())


class StaticRecurrent(Recurrent):
    """The same where it lies, for `rows` rows: a captured graph knows the address."""

    def __init__(self, rows: int) -> None:
        self.rows, self._held = rows, _Still()

    @property
    def values(self) -> dict[str, Tensor]:
        """By their names; a mixer may put others in their place, which are copied there."""
        return self._held

    @values.setter
    def values(self, new: Mapping[str, Tensor]) -> None:
        for name, x in new.items():
            self._held[name] = x

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        return StaticRecurrent(rows) if paths is None else None

    def take(self, other: State, rows: Tensor | None = None) -> None:
        assert isinstance(other, Recurrent)
        for name, given in other.values.items():
            x = given if rows is None else given.index_select(0, rows)
            wide = torch.zeros(self.rows, *x.shape[1:], dtype=x.dtype, device=x.device)
            wide[: len(x)] = x
            self._held[name] = wide
