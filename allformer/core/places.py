"""Where each query and each key stands: who may look at whom is a comparison of places.

A place is a number in the whole sequence of a row: padding, cached tokens and new ones all have
theirs. Causal, windows, relative positions, caches that roll back, wrap around or lie in pages: all
compare places, and nothing assumes that the queries are the last keys.

Legend: R rows, T queries, S keys. A first axis of 1 stands for all rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """`query` (R or 1, T) and `key` (R or 1, S) are places; `real` (R, S) is False where nobody
    stands (padding, an empty slot), None where somebody does everywhere.

    `plain`: key j stands at j, the queries are the last T of them, and all are real: the whole
    triangle (T = S) is then SDPA's `is_causal`. `last`: no key stands after the one query there is.
    `tail`: keys stand one after the other, and the queries are the last T of them, real or not.
    `path` (R, T, S) is False where a key is not of the query's own past: beams share a store.
    """

    query: Tensor
    key: Tensor
    real: Tensor | None = None
    plain: bool = False
    last: bool = False
    tail: bool = False
    path: Tensor | None = None

    @property
    def distance(self) -> Tensor:
        """Key minus query, (R or 1) T S: negative in the past."""
        return self.key[:, None, :] - self.query[:, :, None]

    def behind(self, count: int, rows: Tensor | None = None) -> Places:
        """The same with `count` keys more, right before the first place: at −count … −1; of row r
        the last `rows[r]` alone are there."""
        before = torch.arange(-count, 0, device=self.key.device)[None]
        key = torch.cat([before.expand(len(self.key), -1), self.key], 1)
        if self.real is None and rows is None:
            return self._replace(key=key, plain=False)
        first = before >= 0 - (before.new_full((1,), count) if rows is None else rows)[:, None]
        real = torch.ones_like(self.key, dtype=torch.bool) if self.real is None else self.real
        size = max(len(first), len(real))
        real = torch.cat([first.expand(size, -1), real.expand(size, -1)], 1)
        return self._replace(key=key, real=real, plain=False)

    @property
    def triangle(self) -> bool:
        """Whether "not after the query" is the whole lower triangle."""
        return self.plain and self.query.shape[1] == self.key.shape[1]


def mask_of(
    places: Places, causal: bool, reach: tuple[int, int] | None, dilation: int = 1
) -> Tensor | None:
    """(R or 1) 1 T S, True = may look; None: all may.

    `causal`: no key after the query. `reach`: no more than so many places before and after it.
    `dilation`: of those, every so-manieth.
    """
    causal = causal and not places.last
    near = None
    if causal or reach is not None:
        distance = places.distance  # R T S
        near = distance <= 0 if causal else None
        if reach is not None:
            left, right = reach
            band = (distance >= -left) & (distance <= right)
            if dilation > 1:
                band = band & (distance % dilation == 0)
            near = band if near is None else near & band
        near = near[:, None] if near is not None else None
    if places.path is not None:
        own = places.path[:, None]  # R 1 T S
        near = own if near is None else near & own
    if places.real is None:
        return near
    there = places.real[:, None, None, :]  # R 1 1 S
    return there if near is None else there & near
