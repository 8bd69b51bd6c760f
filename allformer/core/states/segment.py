"""The memory of Transformer-XL: what a layer read in the segments before (Dai et al., section 3.2).

    cache = model.new_cache(memory=1600)          # longer than in training
    for segment in ids.split(128, dim=1):
        model(input_ids=segment, cache=cache)

Legend: B rows, M tokens remembered, T new ones, G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.layout import Grid
from allformer.core.places import Places
from allformer.core.states.state import State


class SegmentMemory(State):
    """The hidden states before a layer of the last `size` tokens; no gradient goes into them.

    `given` (B M dim) are those of tokens before the first, of which `real` (B M) says whether
    anybody stands there; with `blank` they are zeros. Keys and values are projected from them anew
    wherever somebody learns; elsewhere they are kept, so that a step projects new tokens alone.
    """

    learns = True
    pieces = False  # a query sees as much more than the memory as is read with it

    def __init__(
        self,
        size: int,
        given: Tensor | None = None,
        real: Tensor | None = None,
        blank: bool = False,
    ) -> None:
        self.size = size
        if given is not None:
            given = given[:, max(0, given.shape[1] - size) :].detach()
            real = None if real is None else real[:, real.shape[1] - given.shape[1] :]
        self.hidden, self.real = given, real
        self.first = size if blank else 0  # tokens remembered before any was seen
        self.blank = blank and given is None
        if given is not None:
            self.first = given.shape[1]
        self._seen: Tensor | None = None
        self._kept: tuple[Tensor, Tensor] | None = None  # keys and values, B G M D

    sees = True

    def see(self, x: Tensor) -> None:
        if self.hidden is None:
            self.hidden = x.new_zeros(x.shape[0], self.first, x.shape[2])
        self.hidden = self.hidden.to(x.dtype)
        self._seen = x.detach()
        if torch.is_grad_enabled():
            self._kept = None

    def before(self) -> Tensor | None:
        assert self.hidden is not None, "a layer tells what it reads first"
        if self._kept is not None or not self.hidden.shape[1]:
            return None
        return self.hidden

    def places(self, grid: Grid, device: torch.device) -> Places:
        past = grid.past
        assert isinstance(past, int), "a segment memory counts on the host"
        held = min(self.size, self.first + past)
        whole = grid.places(device)
        key = torch.arange(past - held, past + grid.width, device=device)[None]
        return Places(whole.query, key, self._real(grid, held, past, device), tail=True)

    def _real(self, grid: Grid, held: int, past: int, device: torch.device) -> Tensor | None:
        """Who stands there, B M + T: of what was given, and of what the mask covers."""
        if grid.keep is None and self.real is None:
            return None
        keep = grid.keep
        if keep is None:
            keep = torch.ones(grid.rows, past + grid.width, dtype=torch.bool, device=device)
        old = max(0, held - past)  # of the tokens that were given
        real = self.real
        if real is None:
            real = torch.ones(grid.rows, self.first, dtype=torch.bool, device=device)
        if self.blank:  # padding on the left is zeros too: as many fewer come before it
            left = leading(keep)
            real = torch.arange(self.first, device=device) >= left.sum(-1, keepdim=True)
            keep = keep | left
        keep = keep[:, max(0, past - held) :]
        return torch.cat([real[:, self.first - old :], keep], dim=1) if old else keep

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        if self._kept is not None:
            k, v = torch.cat([self._kept[0], k], dim=2), torch.cat([self._kept[1], v], dim=2)
        assert self.hidden is not None
        assert self._seen is not None
        whole = torch.cat([self.hidden, self._seen], dim=1)
        self.hidden = whole[:, max(0, whole.shape[1] - self.size) :].clone()  # a view keeps it all
        if not torch.is_grad_enabled():
            first = max(0, k.shape[2] - self.size)
            self._kept = k[:, :, first:].clone(), v[:, :, first:].clone()
        return k, v

    def select(self, rows: Tensor) -> None:
        if self.hidden is not None:
            self.hidden = self.hidden.index_select(0, rows)
        if self.real is not None:
            self.real = self.real.index_select(0, rows)
        if self._kept is not None:
            k, v = self._kept
            self._kept = k.index_select(0, rows), v.index_select(0, rows)


def leading(keep: Tensor) -> Tensor:
    """Padding before the first token of each row, B S."""
    return keep.cumsum(-1) == 0
