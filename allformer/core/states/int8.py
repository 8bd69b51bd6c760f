"""Keys and values in eight bits: a quarter of fp32's memory, about half of bf16's.

Each token of each head has a scale for every few of its numbers, so that one token's large numbers
do not blur another's, and nothing that is remembered changes when more is read:

    scale = max|x| / 127 in the group,   q = round(x / scale),   |x − scale·q| ≤ scale / 2

No number is off by more than 1/254 of the largest in its group, 0.4 %. What is looked at is widened
again, a layer at a time.

Legend: B rows, G key/value heads, T new tokens, S tokens so far, D head size, N groups of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.places import Places
from allformer.core.precision import widen
from allformer.core.states.growing import Growing
from allformer.core.states.state import Cache, State

GROUP = 32  # numbers that share a scale; heads that it does not divide have one scale each


class Int8(State):
    """As `Growing`, with one byte for a number and a scale for each group."""

    def __init__(self, group: int = GROUP) -> None:
        self.group = group
        self._keys, self._values = Growing(), Growing()  # each the numbers and their scales

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        return self._add(self._keys, k), self._add(self._values, v)

    def _add(self, state: Growing, x: Tensor) -> Tensor:
        q, scale = state.update(*quantised(x, self.group), None)
        return widened(q, scale)

    def select(self, rows: Tensor) -> None:
        self._keys.select(rows)
        self._values.select(rows)

    def cuts(self, length: int) -> bool:
        return True

    def cut(self, length: int) -> None:
        self._keys.cut(length)
        self._values.cut(length)


def quantised(x: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """… D → numbers of one byte … D, and a scale for each `group` of them, … N.

    `quantised(torch.tensor([0.5, -1.27]))` → `[50, -127]`, `[0.01]`
    """
    size = x.shape[-1]
    group = group if size % group == 0 else size
    parts = x.reshape(*x.shape[:-1], size // group, group)  # … N group
    scale = (parts.abs().amax(-1) / 127).to(x.dtype)
    steps = widen(parts) / widen(torch.where(scale > 0, scale, 1.0))[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8).flatten(-2), scale


def widened(q: Tensor, scale: Tensor) -> Tensor:
    """The numbers again, … D, in the scale's dtype."""
    parts = q.reshape(*scale.shape, q.shape[-1] // scale.shape[-1]).to(scale.dtype)
    return (parts * scale[..., None]).flatten(-2)


def in_int8(cache: Cache) -> Cache:
    """A fresh cache that remembers in eight bits what it would have remembered whole.

    Windows keep their few tokens as they are, and so do sums and hashes.
    """
    for layer in cache.layers:
        if type(layer.own) is Growing:
            layer.own = Int8()
    return cache
