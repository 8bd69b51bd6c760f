"""The key/value cache: state that is handed in, never stored on a module.

    cache = Cache(layers=6)
    model.step(first_ids, cache, memory, mask)     # computes and remembers
    model.step(next_ids, cache, None, mask)        # only the new tokens are computed

Legend: B rows, G key/value heads, S cached length, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 32  # room is made for this many tokens at a time, so that appending does not copy each step


class LayerCache:
    """Keys and values of one layer: its own (growing) and, for a decoder, the encoder's (fixed)."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.length = 0
        self.cross: tuple[Tensor, Tensor] | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Remember k, v (B G T D); returns all so far (B G S D)."""
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

    def select(self, rows: Tensor) -> None:
        """Keep (and repeat, and reorder) these rows: beam search moves beams."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def select_cross(self, rows: Tensor) -> None:
        """The same for the encoder's keys and values, needed only when the batch shrinks."""
        if self.cross is not None:
            self.cross = tuple(x.index_select(0, rows) for x in self.cross)  # type: ignore[assignment]


class Cache:
    """One `LayerCache` for each layer of a stack."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    @property
    def length(self) -> int:
        """Tokens remembered so far."""
        return self.layers[0].length

    def select(self, rows: Tensor, cross: bool = False) -> None:
        """Reorder the rows of every layer; `cross=True` when the source rows change as well."""
        with torch.no_grad():
            for layer in self.layers:
                layer.select(rows)
                if cross:
                    layer.select_cross(rows)
