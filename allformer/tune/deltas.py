"""What adapters do to one linear layer: change what it reads, and what it gives.

layer.delta = deltas              # Linear.forward asks it: deltas.around(layer, x)
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.linear import Linear
from allformer.tune.slot import Names, Slot

ALL = slice(None)


class Change(nn.Module):
    """What one method does to a layer; each has `enter` or `leave`, or both."""

    draws = False  # whether it draws from torch's generator in training

    def enter(self, x: Tensor) -> Tensor:
        """What the layer reads in x's place."""
        return x

    def leave(self, x: Tensor, y: Tensor, layer: Any) -> Tensor:
        """What the layer gives in y's place; x is what it read."""
        return y

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight N K and bias N of the one layer that does the same, in their dtype."""
        raise NotImplementedError


class Deltas(Slot):
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


def dense(layer: Any, dtype: torch.dtype, rows: slice = ALL) -> Tensor:
    """The matrix of a layer, plain or in few bits, N K, or some rows of it; without a gradient."""
    if isinstance(layer, Linear):
        return layer.weight.detach()[rows].to(dtype)
    weight: Tensor = layer.dense(dtype)[rows]
    return weight


def spread(parts: dict[str, Tensor], rows: dict[str, slice], outputs: int) -> Tensor:
    """One number for each output of a layer, from those of some parts; 1 for the others, N."""
    first = next(iter(parts.values()))
    if len(first) == outputs:
        return first
    ones, done = first.new_ones(outputs), 0
    pieces: list[Tensor] = []
    for name, place in sorted(rows.items(), key=lambda item: item[1].start):
        pieces += [ones[done : place.start], parts[name]]
        done = place.stop
    return torch.cat([*pieces, ones[done:]])


def _tensors(layer: nn.Module) -> list[Tensor]:
    """A layer's own floating-point tensors, its adapters' not among them."""
    own = chain(layer.parameters(recurse=False), layer.buffers(recurse=False))
    found = [x for x in own if x.is_floating_point()]
    return found or [x for part in layer.children() for x in _tensors(part)]


def wide_dtype(layer: nn.Module) -> torch.dtype:
    """What a layer's adapters are held in: fp32 at least."""
    return torch.promote_types(_tensors(layer)[0].dtype, torch.float32)


def device_of(layer: nn.Module) -> torch.device:
    """Where a layer's tensors are."""
    return _tensors(layer)[0].device
