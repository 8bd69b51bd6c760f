"""Keys and values in pages of one store: what rows no longer need is free for others at once.

Legend: B rows, P pages of a row, G key/value heads, T new tokens, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.places import Places
from allformer.core.states.state import State
from allformer.errors import GenerationError


class Paged(State):
    """A store of `pages` pages of `size` tokens for one layer; what is looked at is gathered."""

    def __init__(self, pages: int, size: int = 16) -> None:
        self.size, self.length = size, 0
        self.free = list(range(pages))[::-1]
        self.pages = pages
        self.rows: list[list[int]] = []  # the pages of each row
        self._store: Tensor | None = None  # 2 pages size G D: keys and values

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        batch, groups, new, size = k.shape
        if self._store is None:
            self._store = k.new_zeros(2, self.pages, self.size, groups, size)
        if not self.rows:
            self.rows = [[] for _ in range(batch)]
        end = self.length + new
        for row in self.rows:
            row += [self._take() for _ in range(-(-end // self.size) - len(row))]
        table = torch.tensor(self.rows, device=k.device)  # B P
        at = torch.arange(self.length, end, device=k.device)
        page, slot = table[:, at // self.size], at % self.size  # B T, T
        both = torch.stack([k, v]).transpose(2, 3)  # 2 B T G D
        self._store[:, page, slot] = both
        self.length = end
        seen = self._store[:, table].flatten(2, 3)[:, :, :end]  # 2 B S G D
        keys, values = seen.transpose(2, 3).unbind(0)
        return keys, values

    def _take(self) -> int:
        if not self.free:
            raise GenerationError(
                f"all {self.pages} pages of {self.size} tokens are taken; give more pages, or "
                f"generate fewer rows at a time"
            )
        return self.free.pop()

    def select(self, rows: Tensor) -> None:
        if not self.rows:  # nothing is remembered yet
            return
        chosen = rows.tolist()
        for i, row in enumerate(self.rows):  # first, so that copies find these pages free
            if i not in chosen:
                self.free += row
        kept: set[int] = set()
        new: list[list[int]] = []
        for i in chosen:  # the first to want a row takes its pages, others copies
            new.append(self.rows[i] if i not in kept else self._copy(self.rows[i]))
            kept.add(i)
        self.rows = new

    def _copy(self, row: list[int]) -> list[int]:
        mine = [self._take() for _ in row]
        if self._store is not None and row:
            self._store[:, mine] = self._store[:, row]
        return mine

    def cuts(self, length: int) -> bool:
        return True

    def cut(self, length: int) -> None:
        self.length = min(self.length, length)
        keep = -(-self.length // self.size)
        for row in self.rows:
            self.free += row[keep:]
            del row[keep:]
