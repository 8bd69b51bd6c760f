"""The interface of a layer's state, and the states of a whole stack.

Legend: B rows, G key/value heads, T new tokens, S keys, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.layout import Ahead, Grid
from allformer.core.places import Places
from allformer.errors import ConfigError, GenerationError

if TYPE_CHECKING:
    from allformer.core.states.paths import Paths


class State:
    """One layer's own memory. The plain one remembers nothing and cannot be taken back."""

    learns = False  # whether a training step goes through it as through none
    pieces = True  # whether a text read in pieces gives what it gives when read at once

    sees = False  # whether it wants to be told what its layer reads

    def see(self, x: Tensor) -> None:
        """The hidden states that the layer is about to read, B T dim; told before all else."""

    def before(self) -> Tensor | None:
        """Hidden states from before that keys and values are projected from as well (segment
        memory), B M dim; None: there are none."""
        return None

    def places(self, grid: Grid, device: torch.device) -> Places:
        """Where the keys stand that `update` will give; asked once for all layers alike."""
        return grid.places(device)

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        """Remember the new keys and values (B G T D); returns those to look at (B G S D)."""
        return k, v

    def held(self) -> tuple[Tensor, Tensor]:
        """The keys and values that are remembered, B G S D each."""
        raise NotImplementedError

    def fixed(self, rows: int, room: int, paths: Paths | None) -> State | None:
        """An empty state of a fixed size, on which nothing but the device counts, that can `take`
        over from this one: for `rows` rows of at most `room` tokens, whose beams share what they
        write if there are `paths`; None: there is none."""
        return None

    def take(self, other: State, rows: Tensor | None = None) -> None:
        """Of a state of a fixed size: go on from what another remembers, or from these rows of it,
        which become the first; all else is forgotten."""
        raise NotImplementedError

    def resume(self, fixed: State, rows: Tensor, length: int) -> None:
        """The way back: go on from what these texts have in a `fixed` form of this state, which has
        read `length` tokens."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Keep, repeat and reorder rows: beam search moves beams."""
        raise NotImplementedError

    def spare(self, tokens: int) -> None:
        """Up to `tokens` of the last ones may have to be forgotten again: keep what that takes."""

    def cuts(self, length: int) -> bool:
        """Whether `cut(length)` can be done."""
        return False

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        raise GenerationError(
            f"{type(self).__name__} cannot be taken back to {length} tokens: what was there is "
            f"gone; use a model with full attention, or begin anew"
        )


class LayerState:
    """A layer's own state and, for a decoder, the encoder's keys and values, which stay."""

    def __init__(self, own: State) -> None:
        self.own = own
        self.cross: tuple[Tensor, Tensor] | None = None

    def select_cross(self, rows: Tensor) -> None:
        """The same rows of the encoder's: needed only where a row gets another source."""
        if self.cross is not None:
            k, v = self.cross
            self.cross = k.index_select(0, rows), v.index_select(0, rows)


class Cache:
    """The states of a stack's layers, and how many tokens they have seen.

    `length` is a number, or a counter on the device (`Static`); `room` is how many there can be.
    """

    # What adapters put before the tokens: for so many rows, learned keys that no state has; and how
    # many learned tokens were read first, which `length` does not count.
    before: Callable[[int], Ahead] | None = None
    learned = 0
    rows: int | None = None  # of the calls that it was given to; None: none yet

    def __init__(self, states: Iterable[State], room: int | None = None) -> None:
        self.layers = [LayerState(state) for state in states]
        self.length: int | Tensor = 0
        self.room = room

    def __getitem__(self, layer: int) -> LayerState:
        return self.layers[layer]

    def hold(self, rows: int) -> None:
        """Refuse a call of other rows than those that are remembered."""
        if self.rows not in (None, rows):
            raise ConfigError(
                f"what is remembered (cache, mems) has {self.rows} rows, but the input {rows}; "
                f"give as many, or begin anew: model.new_cache()"
            )
        self.rows = rows

    def grid(self, rows: int, width: int, keep: Tensor | None) -> Grid:
        """The layout of `width` new tokens behind what is cached."""
        if self.room is not None and keep is not None and keep.shape[1] < self.room:
            keep = F.pad(keep, (0, self.room - keep.shape[1]), value=True)
        # a copy: the layout stands for this call, the counter goes on before heads read it
        past = self.length.clone() if isinstance(self.length, Tensor) else self.length
        if self.learned:
            past = past + self.learned
            keep = None if keep is None else F.pad(keep, (self.learned, 0), value=True)
        ahead = None if self.before is None else self.before(rows)
        return Grid(rows, width, keep, past, self.room, ahead)

    def advance(self, width: int) -> None:
        """So many tokens more have been seen by all layers."""
        if isinstance(self.length, Tensor):
            self.length += width  # in place: a captured graph reads this very number
        else:
            self.length = self.length + width

    def learn(self, count: int) -> None:
        """So many of the tokens that were read came from an adapter: they are not counted."""
        self.learned = count
        self.length = self.length - count

    @torch.no_grad()
    def select(self, rows: Tensor, cross: bool = False) -> None:
        """Reorder the rows of every layer; `cross=True` when the source rows change as well."""
        self.rows = None  # there may be more or fewer
        for layer in self.layers:
            layer.own.select(rows)
            if cross:
                layer.select_cross(rows)

    def spare(self, tokens: int) -> None:
        """From now on up to `tokens` of the last ones may be cut off, whatever the layers keep."""
        for layer in self.layers:
            layer.own.spare(tokens)

    def cuts(self, length: int) -> bool:
        """Whether every layer can be taken back to its first `length` tokens."""
        return all(layer.own.cuts(length + self.learned) for layer in self.layers)

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens: a draft that was not accepted."""
        for layer in self.layers:
            layer.own.cut(length + self.learned)
        if isinstance(self.length, Tensor):
            self.length.clamp_(max=length)
        else:
            self.length = min(self.length, length)
