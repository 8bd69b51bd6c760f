"""A state of fixed size that a layer carries along and rewrites: sums of linear attention."""

from __future__ import annotations

from torch import Tensor

from allformer.core.states.state import State


class Recurrent(State):
    """Named tensors with a row for each row of the batch; the mixer reads and writes them."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def select(self, rows: Tensor) -> None:
        self.values = {name: x.index_select(0, rows) for name, x in self.values.items()}
