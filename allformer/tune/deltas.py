"""What adapters do to one linear layer: change what it reads, and what it gives.

layer.delta = deltas              # Linear.forward asks it: deltas.around(layer, x)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from allformer.core.linear import Around
from allformer.tune.slot import Names, Slot


class Change(nn.Module):
    """What one method does to a layer; each has `enter` or `leave`, or both."""

    def enter(self, x: Tensor) -> Tensor:
        """What the layer reads in x's place."""
        return x

    def leave(self, x: Tensor, y: Tensor, layer: Any) -> Tensor:
        """What the layer gives in y's place; x is what it read."""
        return y

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight N K and bias N of the one layer that does the same, in their dtype."""
        raise NotImplementedError


class Deltas(Slot, Around):
    """The changes of a linear layer, by adapter and by method."""

    def around(self, layer: Any, x: Tensor) -> Tensor:
        """What the layer gives with the adapters that are chosen; rows may have their own."""
        if self.selection.rows is None:
            return self._alike(layer, x, self.selection.names)
        groups = self.selection.groups(len(x), x.device)
        for names, rows in groups:
            for change in self.changes(names):
                if type(change).enter is not Change.enter:
                    x = x.index_copy(0, rows, change.enter(x[rows]))
        y: Tensor = layer.bare(x)
        for names, rows in groups:
            for change in self.changes(names):
                y = y.index_copy(0, rows, change.leave(x[rows], y[rows], layer))
        return y

    def _alike(self, layer: Any, x: Tensor, names: Names) -> Tensor:
        changes = list(self.changes(names))
        for change in changes:
            x = change.enter(x)
        y: Tensor = layer.bare(x)
        for change in changes:
            y = change.leave(x, y, layer)
        return y

    def changes(self, names: Names) -> Iterable[Change]:
        """What some adapters do here, in order."""
        return self.of(names)  # type: ignore[return-value]
