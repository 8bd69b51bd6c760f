"""Keys and values of rows that come and go, in pages of one store for each layer.

    cache = PagedCache(layers, pages=1000, size=16)
    cache.turn_to(table, layout)             # which pages the rows of the next call have
    model.hidden(…, cache=cache)

Each row has its own length and its own pages (`Pool` says which), and rows that begin alike have
pages together. An encoder's keys and values lie in pages of the same store.

Legend: R rows, P pages of a row, T new tokens, N of all rows, S keys, M of all rows, G key/value
heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.layout import Grid
from allformer.core.places import Places
from allformer.core.resumed import Resumed
from allformer.core.states.state import Cache, LayerState, State


def slots_of(table: Tensor, places: Tensor, size: int) -> Tensor:
    """Where places of each row lie, R T, in pages of `size`: `table` R P, `places` R T."""
    return table.gather(1, places // size) * size + places % size


class Frame:
    """Where the rows of a call lie: the same for all layers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.table = torch.zeros(0, 0, dtype=torch.long)  # R P; 0 behind a row's last page
        self.lengths = torch.zeros(0, dtype=torch.long)  # R, the new tokens too
        self.query = self.table  # R T: the places of the new tokens
        self.slots = self.lengths  # R·T: where they are written; padding in page 0
        self.written = self.lengths  # N: the same of new tokens that lie end to end
        self.whole: Resumed | None = None  # rows from their first token on, where somebody said so
        self.read: Tensor | None = None  # where all of these lie, M; None: the new ones are all
        self.sources: tuple[Tensor, Tensor] | None = None  # R P and R, of the encoder's

    def turn_to(self, table: Tensor, layout: Resumed, whole: Resumed | None = None) -> None:
        """The rows of the next call; `whole`: with what was read of them before."""
        query = layout.to_grid(layout.numbers)  # R T
        slots = slots_of(table, query, self.size)
        self.table, self.query = table, query
        self.slots = slots.masked_fill(~layout.keep, 0).flatten()
        self.lengths = query.amax(1) + 1
        self.whole, self.read = whole, None
        if whole is not None:
            self.written = layout.lay(slots)
            if whole is not layout:
                places = whole.to_grid(whole.numbers)
                self.read = whole.lay(slots_of(table, places, self.size))


class Pages(State):
    """One layer's store: `pages` pages for rows, and page 0, which is nobody's."""

    learns = True  # fused kernels may serve between the layers where a graph is captured

    def __init__(self, frame: Frame, pages: int, heads: int, size: int) -> None:
        self.frame, self.pages = frame, pages
        self.shape = heads, size
        self._keys: Tensor | None = None  # slots G D
        self._values: Tensor | None = None

    def places(self, grid: Grid, device: torch.device) -> Places:
        """Key j of a row stands at j; what a row has not written comes after its last query."""
        frame = self.frame
        key = torch.arange(frame.table.shape[1] * frame.size, device=device)[None]
        return Places(frame.query, key)

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        """Without `places`, the whole stores: the kernel finds its way about them. Of rows that lie
        end to end, N G D, so do the keys that they look at, M G D."""
        if k.ndim == 3:
            keys, values = self.write(self.frame.written, k, v)
            read = self.frame.read
            return (k, v) if read is None else (keys[read], values[read])
        keys, values = self.write(self.frame.slots, *(x.transpose(1, 2) for x in (k, v)))
        if places is None:
            return keys, values
        table, lengths = self.frame.table, self.frame.lengths
        return self.gather(keys, table, lengths), self.gather(values, table, lengths)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v, R T …, into these slots; gives the stores."""
        if self._keys is None or self._values is None:
            slots_in_all = (self.pages + 1) * self.frame.size
            self._keys = k.new_zeros(slots_in_all, *self.shape)
            self._values = v.new_zeros(slots_in_all, *self.shape)
        self._keys.index_copy_(0, slots, k.reshape(-1, *self.shape))
        self._values.index_copy_(0, slots, v.reshape(-1, *self.shape))
        return self._keys, self._values

    def source(self) -> tuple[Tensor, Tensor]:
        """The encoder's keys and values of the rows of this call, R S G·D."""
        assert self.frame.sources is not None
        both = (self.gather(x, *self.frame.sources) for x in self.stores)
        k, v = (x.transpose(1, 2).flatten(2) for x in both)
        return k, v

    @property
    def stores(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all pages, slots G D, once something was written."""
        assert self._keys is not None
        assert self._values is not None
        return self._keys, self._values

    def gather(self, store: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        """What the pages of each row hold, R G S D; zeros behind its end: what another has left
        there may not even be a number, and nothing times that is not nothing."""
        seen = store.view(self.pages + 1, -1).index_select(0, table.flatten())
        seen = seen.view(len(table), -1, *self.shape)  # R S G D
        beyond = torch.arange(seen.shape[1], device=seen.device) >= lengths[:, None]
        return seen.masked_fill_(beyond[..., None, None], 0.0).transpose(1, 2)


class PagedLayer(LayerState):
    """A layer's store; the encoder's keys and values are looked up in it when they are needed."""

    def __init__(self, own: Pages) -> None:
        self.store = own
        super().__init__(own)

    @property
    def cross(self) -> tuple[Tensor, Tensor] | None:
        return None if self.store.frame.sources is None else self.store.source()

    @cross.setter
    def cross(self, both: tuple[Tensor, Tensor] | None) -> None:
        assert both is None, "an encoder's keys and values are put into pages: `Pages.write`"


class PagedCache(Cache):
    """The stores of a stack's layers, `shapes` of each: key/value heads and head size."""

    def __init__(self, shapes: list[tuple[int, int]], pages: int, size: int) -> None:
        self.frame = Frame(size)
        self.stores = [Pages(self.frame, pages, *shape) for shape in shapes]
        self.layers = [PagedLayer(store) for store in self.stores]
        self.length, self.room = 0, None

    def advance(self, width: int) -> None:
        """Rows have lengths of their own, which the layout tells."""

    def turn_to(self, table: Tensor, layout: Resumed, whole: Resumed | None = None) -> None:
        """The rows of the next call: `table` (R P) has their pages, 0 behind the last. `whole` is
        their layout from the first token on, for kernels that take rows end to end."""
        self.frame.turn_to(table, layout, whole)
