"""Memory of a fixed size for the texts of a search, and the graphs of a step in it.

    room = Room(model, size, cache)
    room.take(cache, mask, rows)           # go on from what a plain cache remembers
    room.tokens.copy_(tokens)
    logits = room.step(length)             # so many tokens stand before the new one

A step reads all slots that the layout says there are, filled or not. So there is a graph for each
of a few lengths, and a step takes the shortest that holds what there is: a third of what is read
may be empty, no more.

Legend: B rows (sources), C copies of each (beams, draws), R = B·C texts, L tokens of the prompt,
S vectors of an encoder, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.few_rows import FewRows
from allformer.core.inputs import Side
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.precision import widen
from allformer.core.states import Cache, LayerState, Paths, State, Static
from allformer.generate.graph import Graph, loosely

_LEAST = 64

AnyModel = DecoderOnlyModel | EncoderDecoderModel


def rounded(count: int) -> int:
    """The next of 64, 96, 128, 192, 256, 384, …: as many as there are sizes that come often."""
    size = _LEAST
    while size < count:
        size *= 2
    return size // 4 * 3 if size > _LEAST and size // 4 * 3 >= count else size


def common(rows: int) -> int:
    """The next number of rows that comes often: rows that nobody uses cost little, a graph for
    every number much."""
    step = 1 if rows <= 8 else 8 if rows <= 64 else 32
    return -(-rows // step) * step


class Prompt(NamedTuple):
    """How prompts of about one width are read: their ids (R width, zeros behind them), where the
    last one stands, and the graph that reads them."""

    ids: Tensor
    last: Tensor
    graph: Graph


class Size(NamedTuple):
    """What a room is for."""

    rows: int  # B
    copies: int  # C
    forked: bool  # the copies are beams that share what they write
    room: int  # tokens
    masked: bool  # prompts have padding
    source: int  # S; 0: there is no encoder
    dtype: torch.dtype | None  # of the work

    @property
    def texts(self) -> int:
        """R."""
        return self.rows * self.copies


class Room:
    """Of a model and a size; `like` is a cache of the same kind, for what its layers remember."""

    def __init__(self, model: AnyModel, size: Size, like: Cache) -> None:
        self.model, self.size, device = model, size, model.device
        self.paths = None
        if size.forked:
            self.paths = Paths(size.rows, size.copies, size.room, device)
        stored = size.rows if size.forked else size.texts  # rows of what layers remember
        states = [layer.own.fixed(stored, size.room, self.paths) for layer in like.layers]
        self.cache = Cache([state for state in states if state is not None], size.room)
        assert len(self.cache.layers) == len(like.layers), "static_stepper has asked before"
        self.counter = torch.zeros((), dtype=torch.long, device=device)
        self.cache.length = self.counter
        self.tokens = torch.zeros(size.texts, 1, dtype=torch.long, device=device)
        self.keep = self.left = self.across = None
        if size.masked:
            self.keep = torch.ones(stored, size.room, dtype=torch.bool, device=device)
            self.left = torch.zeros(size.texts, 1, dtype=torch.long, device=device)
        if size.source:
            self.across = torch.ones(size.rows, size.source, dtype=torch.bool, device=device)
        self.few: FewRows | None = None
        if not size.forked and FewRows.serves(model, size.dtype, size.texts):
            assert isinstance(model, DecoderOnlyModel)
            self.few = FewRows(model)
        self.graphs: dict[int, Graph] = {}  # of a step, by how far it reaches
        self.prompts: dict[int, Prompt] = {}  # by their width

    @property
    def refused(self) -> str | None:
        """Why a step could not be captured, if it could not."""
        return next((graph.refused for graph in self._every() if graph.refused), None)

    def _every(self) -> list[Graph]:
        return [*self.graphs.values(), *(prompt.graph for prompt in self.prompts.values())]

    @property
    def bytes(self) -> int:
        """What its layers remember takes."""
        found = [x for layer in self.cache.layers for x in _tensors(layer)]
        return sum(x.numel() * x.element_size() for x in found)

    # --- what it begins with ----------------------------------------------------------------------

    def take(self, plain: Cache, mask: Tensor | None, count: int) -> None:
        """Go on from a cache of `count` rows, which gives its memory back layer by layer; `mask` is
        that of the prompts (rows L), or of the encoder's vectors (rows S)."""
        assert isinstance(plain.length, int)
        rows = None
        if self.size.copies > 1 and not self.size.forked:
            rows = torch.arange(count, device=self.tokens.device)
            rows = rows.repeat_interleave(self.size.copies)
        width = 0 if plain[0].cross is None else plain[0].cross[0].shape[1]
        for mine, other in zip(self.cache.layers, plain.layers, strict=True):
            mine.own.take(other.own, rows)
            other.own = State()
            self._look_across(mine, other.cross, None)
            other.cross = None
        self.counter.fill_(plain.length)
        if self.paths is not None:
            self.paths.begin()
        if self.across is not None:
            self._cover(mask, width)
        elif mask is not None:
            self._pad(mask, rows)

    def follow(self, other: Room, texts: Tensor, spend: bool = False) -> None:
        """Go on from these texts of another room, whole groups of copies where this one has any;
        they become the first. `spend`: it gives its memory back layer by layer, and is no more."""
        copies, had = self.size.copies, other.size.copies
        rows = texts[::copies] // had  # B: their sources
        stored = rows if self.size.forked else texts
        for mine, old in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.own.take(old.own, stored)
            self._look_across(mine, old.cross, rows)
            if spend:
                old.own, old.cross = State(), None
        self.counter.copy_(other.counter)
        if self.paths is not None and other.paths is not None:
            self.paths.take(other.paths, rows)
        if self.across is not None and other.across is not None:
            self.across[: len(rows)] = other.across.index_select(0, rows)
        if self.keep is not None and other.keep is not None:
            end = min(self.size.room, other.size.room)
            self.keep.fill_(True)
            self.keep[: len(stored), :end] = other.keep.index_select(0, stored)[:, :end]
        if self.left is not None and other.left is not None:
            self.left.zero_()  # of rows that nobody uses: their places must be in the table too
            self.left[: len(texts)] = other.left.index_select(0, texts)

    def _look_across(
        self, mine: LayerState, given: tuple[Tensor, Tensor] | None, rows: Tensor | None
    ) -> None:
        """The encoder's keys and values, once for all copies, where the graph looks for them."""
        if given is None:
            return
        if mine.cross is None:
            shape = (self.size.rows, self.size.source, given[0].shape[2])
            mine.cross = given[0].new_zeros(shape), given[1].new_zeros(shape)
        for store, old in zip(mine.cross, given, strict=True):
            new = old if rows is None else old.index_select(0, rows)
            store.zero_()
            store[: len(new), : new.shape[1]] = new

    def _cover(self, mask: Tensor | None, width: int) -> None:
        """Which of the encoder's vectors are there; rows that nobody uses see zeros."""
        assert self.across is not None
        self.across.fill_(False)
        self.across[:, :width] = True
        if mask is not None:
            self.across[: len(mask), :width] = mask

    def _pad(self, mask: Tensor, rows: Tensor | None) -> None:
        """Where prompts have padding, and how much: it has no number."""
        assert self.keep is not None
        assert self.left is not None
        stored = mask if rows is None else mask[rows]
        self.keep.fill_(True)
        self.keep[: len(stored), : mask.shape[1]] = stored
        left = (~mask).sum(1, keepdim=True).repeat_interleave(self.size.copies, 0)
        self.left.zero_()
        self.left[: len(left)] = left

    def mask(self, texts: Tensor, length: int) -> Tensor | None:
        """That of a plain state of these texts, which have read `length` tokens."""
        if self.across is not None:
            return self.across.index_select(0, texts // self.size.copies)
        if self.keep is None:
            return None
        rows = texts // self.size.copies if self.size.forked else texts
        return self.keep.index_select(0, rows)[:, :length]

    # --- a step -----------------------------------------------------------------------------------

    def step(self, length: int) -> Tensor:
        """Read `tokens`, before which stand `length`: the logits of what follows, R V, which stand
        until the next step."""
        reach = self._reach(length + 1)
        if reach not in self.graphs:
            self.graphs[reach] = self._graph(partial(loosely(self._read), reach))
        return self.graphs[reach]()

    def _reach(self, count: int) -> int:
        """How many slots a step must reach; the whole room, where no more is read for it."""
        states = (layer.own for layer in self.cache.layers)
        most = max((state.room for state in states if isinstance(state, Static)), default=0)
        reach = rounded(count)
        return self.size.room if self.few is not None or reach >= most else reach

    def _pool(self) -> Any:
        """One graph's memory for what lies in between serves all: one runs at a time."""
        made = (graph.captured for graph in self._every() if graph.captured is not None)
        first = next(made, None)
        return None if first is None else first.graph.pool()

    def _read(self, reach: int) -> Tensor:
        self.cache.room = reach
        model, dtype = self.model, self.size.dtype
        if isinstance(model, EncoderDecoderModel):
            return widen(model.step(self.tokens, self.cache, None, self.across, dtype=dtype))
        keep = where = None
        if self.keep is not None and self.left is not None:
            keep, where = self.keep[:, :reach], self.counter - self.left
        if self.few is not None:
            return widen(self.few.step(self.tokens, self.cache, keep, where))
        return widen(model.step(self.tokens, self.cache, keep, position_ids=where, dtype=dtype))

    def read(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Begin with prompts (rows L) of a decoder whose states are all `Static`: the logits of
        what follows, rows V, which stand until this is called again.

        What is read too much comes after the prompts: they do not see it, and the next tokens take
        its place.
        """
        count, length = ids.shape
        for layer in self.cache.layers:
            assert isinstance(layer.own, Static)
            layer.own.clear()
        width = min(rounded(length), self.size.room)
        if width not in self.prompts:
            self.prompts[width] = self._prompt(width)
        prompt = self.prompts[width]
        prompt.ids.zero_()
        prompt.ids[:count, :length] = ids
        prompt.last.fill_(length - 1)
        self.counter.zero_()
        if mask is not None:
            self._pad(mask, None)
        logits = prompt.graph()
        self.counter.fill_(length)
        return logits[:count]

    def _prompt(self, width: int) -> Prompt:
        device = self.tokens.device
        ids = torch.zeros(self.size.texts, width, dtype=torch.long, device=device)
        last = torch.zeros(1, dtype=torch.long, device=device)
        return Prompt(ids, last, self._graph(partial(loosely(self._begin), ids, last)))

    def _graph(self, call: Callable[[], Tensor]) -> Graph:
        return Graph(call, self.tokens.device, loosely(self._pool))

    def _begin(self, ids: Tensor, last: Tensor) -> Tensor:
        model, self.cache.room = self.model, ids.shape[1]
        assert isinstance(model, DecoderOnlyModel)
        inputs, keep = {"input_ids": ids}, None
        if self.keep is not None:
            keep = self.keep[:, : ids.shape[1]]
            inputs["position_ids"] = keep.cumsum(1).sub(1).clamp_min(0)
        grid = self.cache.grid(ids.shape[0], ids.shape[1], keep)
        sides = {"decoder": Side(grid, inputs, ids, grid.total)}
        hidden = model.hidden(sides, dtype=self.size.dtype, cache=self.cache)["decoder"]
        where = last if model.vocab_head.placed else None
        return widen(model.logits(hidden.index_select(1, last)[:, 0], where))

    def move(self, beam: Tensor) -> None:
        """Beam c of each of the B rows goes on from `beam[b, c]`."""
        if self.paths is not None:
            self.paths.move(beam)
            return
        first = torch.arange(len(beam), device=beam.device)[:, None] * self.size.copies
        self.cache.select((first + beam).flatten())


def _tensors(layer: LayerState) -> list[Tensor]:
    own: Any = layer.own
    held = [*own.values.values()] if hasattr(own, "values") else [*own.held()]
    return [*held, *(layer.cross or ())]
