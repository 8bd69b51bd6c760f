"""What a lean decoder remembers: keys and values of each source's columns, whoever stands there.

Rows that multiply (beams, draws) share the columns so far; from then on each of the K copies adds a
column at every step, and `extra` says which of these a copy comes from. When copies change places,
`extra` does: nothing else is moved.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.states import Cache
from allformer.core.states.state import State

_STEP = 32  # columns by which room grows at least
_MOST = 8  # copies that share columns: of more, each looks past too many that are others'
_NEVER = float("-inf")


class Columns(State):
    """A layer's keys and values, A G C D each."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.count = 0

    def add(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New columns, A G M D; gives all there are."""
        begin, keys, values = self.room(k.transpose(1, 2))
        keys[:, :, begin : self.count] = k
        values[:, :, begin : self.count] = v
        return keys[:, :, : self.count], values[:, :, : self.count]

    def room(self, k: Tensor) -> tuple[int, Tensor, Tensor]:
        """New columns for k, A M G D, which the caller fills: where they begin, and all there are
        with the room behind them."""
        begin, end = self.count, self.count + k.shape[1]
        if self._keys is None or self._values is None or end > self._keys.shape[2]:
            room = -(-(end + end // 4) // _STEP) * _STEP
            self._keys, self._values = (self._grown(x, k, room) for x in (self._keys, self._values))
        self.count = end
        return begin, self._keys, self._values

    def _grown(self, old: Tensor | None, like: Tensor, room: int) -> Tensor:
        sources, _, groups, size = like.shape
        grown = like.new_empty(sources, groups, room, size)
        if old is not None:
            grown[:, :, : self.count] = old[:, :, : self.count]
        return grown

    def select(self, rows: Tensor) -> None:
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def part(self, sources: Tensor, columns: Tensor) -> None:
        """Each of R rows gets columns of its own: of source R those of `columns`, R C."""
        if self._keys is not None and self._values is not None:
            self.select(sources)
            at = columns[:, None, :, None].expand(
                -1, *self._keys.shape[1:2], -1, self._keys.shape[3]
            )
            self._keys, self._values = self._keys.gather(2, at), self._values.gather(2, at)
            self.count = columns.shape[1]

    def cut(self, length: int) -> None:
        self.count = min(self.count, length)


class LeanCache(Cache):
    """The states of a `LeanDecoder`'s layers, and who looks at which column.

    `keep` (A P, True = real) is of the prompt; what follows is never padding.
    """

    def __init__(self, layers: int, keep: Tensor | None = None) -> None:
        super().__init__(Columns() for _ in range(layers))
        self.copies = 1  # K
        self.shared = 0  # columns before the copies parted
        self.extra: Tensor | None = None  # R C−shared: 0 where a row looks, −inf where it does not
        self.keep = keep
        self.across: Tensor | None = None  # A 1 S, of the encoder's vectors: 0, or −inf for padding

    @property
    def columns(self) -> int:
        """How many there are."""
        own = self.layers[0].own
        assert isinstance(own, Columns)
        return own.count

    @property
    def past(self) -> int:
        """Tokens so far."""
        assert isinstance(self.length, int), "the places are counted here, not on a device"
        return self.length

    def numbers(self, new: int) -> Tensor | None:
        """The positions of the new tokens, A N, where padding is not counted; None: their columns
        are."""
        if self.keep is None:
            return None
        past, end, known = self.past, self.past + new, self.keep.shape[1]
        counted = self.keep.cumsum(1)
        if end > known:  # what follows the prompt is real
            more = torch.arange(1, end - known + 1, device=counted.device)
            counted = torch.cat([counted, counted[:, -1:] + more], 1)
        return counted[:, past:end].sub(1).clamp_min(0)

    def widen(self, new: int) -> int:
        """How many columns there will be with `new` tokens of each row; copies part with them."""
        if self.copies > 1:
            own = torch.full((self.copies, self.copies), _NEVER).fill_diagonal_(0.0)
            own = own.repeat(self._sources, 1)  # R K
            self.extra = own if self.extra is None else torch.cat([self.extra, own], 1)
        return self.columns + new * self.copies

    def places(self, columns: int) -> Tensor:
        """Where the token of each column stands, C."""
        at = torch.arange(columns)
        if self.copies == 1:
            return at
        later = (at - self.shared).div(self.copies, rounding_mode="floor")
        return torch.where(at < self.shared, at, self.shared + later)

    def mask(self, new: int, columns: int) -> Tensor | None:
        """(A or 1) N C, True = may look, of several new tokens, which are the last columns; None:
        "not after itself" says it all. Who may look at nothing looks at everything: nobody looks
        at what it finds."""
        if self.keep is None and columns == new:
            return None
        causal = torch.ones(new, columns, dtype=torch.bool).tril(columns - new)[None]
        if self.keep is None:
            return causal
        keep = self.keep[:, :columns]
        keep = F.pad(keep, (0, columns - keep.shape[1]), value=True)
        seen = causal & keep[:, None]
        return seen | ~seen.any(2, keepdim=True)

    def bias(self, columns: int, dtype: torch.dtype) -> Tensor | None:
        """A K C: what is added to the scores of one new token of each row, 0 or −inf; None: all is
        seen."""
        shared = columns if self.copies == 1 else self.shared
        prompt = None
        if self.keep is not None:
            known = self.keep[:, :shared]
            prompt = torch.zeros(known.shape, dtype=dtype).masked_fill_(~known, _NEVER)
            prompt = F.pad(prompt, (0, shared - known.shape[1]))[:, None]  # A 1 C
        if self.copies == 1:
            return prompt
        assert self.extra is not None
        extra = self.extra.to(dtype).view(-1, self.copies, columns - shared)
        if prompt is None:
            return F.pad(extra, (shared, 0))
        return torch.cat([prompt.expand(-1, self.copies, -1), extra], 2)

    @property
    def _sources(self) -> int:
        own = self.layers[0].own
        assert isinstance(own, Columns)
        assert own._keys is not None
        return len(own._keys)

    @torch.no_grad()
    def select(self, rows: Tensor, cross: bool = False) -> None:
        """Reorder rows; unless `cross`, each stays with its own source, among its copies."""
        if not self.columns:
            return
        if not cross and len(rows) == self._sources * self.copies:
            if self.copies == 1:
                super().select(rows)
            elif self.extra is not None:
                self.extra = self.extra.index_select(0, rows)
            return
        index = rows.tolist()
        if not _together(index, self.copies):
            self.settle()
        copies = self.copies if self.copies > 1 else _repeats(index)
        first = [i // self.copies for i in index[::copies]]
        if first != list(range(self._sources)):
            self._take(torch.tensor(first))
        if self.copies > 1 and self.extra is not None:
            self.extra = self.extra.index_select(0, rows)
        elif copies > 1 and self.copies == 1:
            self.copies, self.shared, self.extra = copies, self.columns, None

    def _take(self, sources: Tensor) -> None:
        """Only these sources, in this order."""
        super().select(sources, cross=True)
        self.keep = None if self.keep is None else self.keep.index_select(0, sources)
        self.across = None if self.across is None else self.across.index_select(0, sources)

    def settle(self) -> None:
        """Give each row columns of its own: the copies no longer share any."""
        if self.copies == 1:
            return
        sources = torch.arange(self._sources).repeat_interleave(self.copies)
        columns = torch.arange(self.shared).expand(len(sources), -1)
        if self.extra is not None:
            mine = self.extra.sort(dim=1, descending=True, stable=True).indices
            columns = torch.cat([columns, self.shared + mine[:, : self.past - self.shared]], 1)
        for layer in self.layers:
            assert isinstance(layer.own, Columns)
            layer.own.part(sources, columns)
            layer.select_cross(sources)
        self.keep = None if self.keep is None else self.keep.index_select(0, sources)
        self.across = None if self.across is None else self.across.index_select(0, sources)
        self.copies, self.extra = 1, None

    def cut(self, length: int) -> None:
        self.settle()
        super().cut(length)
        self.keep = None if self.keep is None else self.keep[:, :length]


def _together(index: list[int], copies: int) -> bool:
    """Whether the copies of a source are still side by side."""
    whole = len(index) % copies == 0
    return whole and all(
        len({i // copies for i in index[at : at + copies]}) == 1
        for at in range(0, len(index), copies)
    )


def _repeats(index: list[int]) -> int:
    """How often each row stands there, one beside the other, if all do so equally often, and not
    too often; else 1."""
    times = next((at for at, i in enumerate(index) if i != index[0]), len(index))
    whole = len(index) % times == 0 and times <= _MOST
    alike = whole and all(
        len(set(index[at : at + times])) == 1 for at in range(0, len(index), times)
    )
    return times if alike else 1
