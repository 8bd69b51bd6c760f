"""A model as an engine calls it: rows that have nothing in common go on side by side.

    reader = Reader(model, pages=1000, size=16)
    logits = reader.read([Line(ids=[5, 7], past=3, pages=[4])])        # rows V

What rows remember lies in pages, which the caller hands out (`core/states/pool.py`).

Legend: R rows, N new tokens of all rows, P pages of a row, S source length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from allformer.core.fused import capturing
from allformer.core.inputs import Side
from allformer.core.kernels.kernel import Case
from allformer.core.kernels.paged import paged_serves
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.layout import Grid
from allformer.core.lean import LeanDecoder
from allformer.core.lean.native import few_for
from allformer.core.lean.pages import Tokens
from allformer.core.matmul import few_rows_by
from allformer.core.mixers.full import Full
from allformer.core.mixers.window import Window
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.precision import widen
from allformer.core.relatives.rotary import Rotary
from allformer.core.resumed import Resumed, resume
from allformer.core.states import Growing, Ring
from allformer.core.states.pages import PagedCache, slots_of
from allformer.core.taps import listening
from allformer.errors import ConfigError
from allformer.generate.fixed_steps import FixedSteps
from allformer.generate.graph import loosely
from allformer.generate.lean import lean_rows
from allformer.generate.line import Line
from allformer.generate.stepper import stepper_for


class Reader:
    """`model` with stores of `pages` pages of `size` tokens; `dtype` is what is computed in."""

    def __init__(
        self,
        model: DecoderOnlyModel | EncoderDecoderModel,
        pages: int,
        size: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.dtype, self.size = model, dtype, size
        self.cache = PagedCache(shapes(model), pages, size)
        self.longest = model.config.decoder.longest
        self.steps: FixedSteps | None = None
        if self._captures():
            across = isinstance(model, EncoderDecoderModel)
            self.steps = FixedSteps(loosely(self.call), model.device, across, capture=True)
        self.lean = lean_rows(model, dtype)
        flash = RaggedFlash()
        self.end_to_end = any(flash.fits(case._replace(packed=True)) for case in self._cases())

    def _captures(self) -> bool:
        """Whether steps by one token are worth a graph: a kernel reads the pages where they lie, so
        that a table may be wider than a row."""
        decoder: Any = self.model.decoder
        if decoder.relative is not None and not isinstance(decoder.relative, Rotary):
            return False  # a bias for every pair of places
        steady = all(layer.attention.mixer.dilation == 1 for layer in decoder.layers)
        return steady and all(map(paged_serves, self._cases()))

    def _cases(self) -> set[Case]:
        """What kernels are asked for, but for who looks at whom."""
        dtype = self.dtype or next(self.model.parameters()).dtype
        decoder: Any = self.model.decoder
        sizes = {layer.attention.mixer.size for layer in decoder.layers}
        drops = self.model.training
        return {Case("fast", self.model.device, dtype, size, drops=drops) for size in sizes}

    def step(self, lines: Sequence[Line]) -> Tensor:
        """The same for lines of one token each; what it gives stands until the next step."""
        if self.steps is None or listening():  # a graph shows nothing
            return self.read(lines)
        return self.steps.read(lines)

    def warm_up(self, rows: int, chunk: int) -> None:
        """Compile and capture for up to so many rows, and for prompts; into page 0, nobody's."""
        if self.steps is None:
            return
        self.steps.warm_up(rows)
        if isinstance(self.model, EncoderDecoderModel):  # whose prompts are most often one token
            return
        longest = chunk if self.longest is None else min(chunk, self.longest)
        nowhere = [0] * -(-longest // self.size)
        for past, end in ((0, longest), (0, max(1, longest - 1)), (longest // 2, longest)):
            self.read([Line([0] * (end - past), past, nowhere)])

    def read(self, lines: Sequence[Line]) -> Tensor:
        """The logits behind the last token of each line, R V, in at least fp32."""
        if self.lean is not None and not (listening() or torch.is_grad_enabled()):
            return self._lean(self.lean, lines)
        device = self.model.device
        past, new = [x.past for x in lines], [len(x.ids) for x in lines]
        layout, whole = resume(past, new, device), None
        if self.end_to_end:
            ends = [x + y for x, y in zip(past, new, strict=True)]
            whole = resume([0] * len(ends), ends, device) if any(past) else layout
        ids = torch.tensor([i for line in lines for i in line.ids], device=device)
        sources = None
        if isinstance(self.model, EncoderDecoderModel):
            lengths = torch.tensor([x.source for x in lines], device=device)
            sources = table_of([x.sources for x in lines]).to(device), lengths
        table = table_of([x.pages for x in lines]).to(device)
        return self.call(ids, layout, table, sources, whole)

    def _lean(self, lean: LeanDecoder, lines: Sequence[Line]) -> Tensor:
        """The same on a CPU, where a token is a row of its own."""
        counts = [len(x.ids) for x in lines]
        count = torch.tensor(counts)
        row = torch.arange(len(lines)).repeat_interleave(count)  # of each token
        numbers = torch.tensor([i for x in lines for i in range(x.past, x.past + len(x.ids))])
        table = table_of([x.pages for x in lines])[row]
        slots = slots_of(table, numbers[:, None], self.size)[:, 0]
        tokens = Tokens(slots, table, numbers + 1, counts)
        if isinstance(self.model, EncoderDecoderModel):
            lengths = torch.tensor([x.source for x in lines])
            sources = table_of([x.sources for x in lines])
            tokens = tokens._replace(across=(sources[row], lengths[row]))
        ids = torch.tensor([i for line in lines for i in line.ids])
        hidden = lean.rows(ids, numbers, tokens, self.cache)
        return widen(lean.logits(hidden[count.cumsum(0) - 1]))

    def call(
        self,
        ids: Tensor,
        layout: Resumed,
        table: Tensor,
        sources: tuple[Tensor, Tensor] | None = None,
        whole: Resumed | None = None,
    ) -> Tensor:
        """The same from tensors on the device: ids N, table R P, of the sources R P and R, and
        perhaps the layout of the rows from their first token on."""
        self.cache.turn_to(table, layout, whole)
        self.cache.frame.sources = sources
        first = getattr(self.model.decoder.source.position, "first", 0)
        inputs = {"input_ids": ids, "position_ids": layout.numbers + first}
        room = table.shape[1] * self.size
        # What rows may become was checked when they came: no number is looked at here.
        side = Side(layout, inputs, None, room if self.longest is None else min(room, self.longest))
        # Sizes come again, and the next step does the same as a graph.
        with capturing(), few_rows_by(few_for):
            hidden = self._hidden(side, sources)
        return widen(self.model.logits(hidden[layout.starts[1:].long() - 1]))

    def _hidden(self, side: Side, sources: tuple[Tensor, Tensor] | None) -> Tensor:
        """The last states, N dim."""
        model = self.model
        if sources is None:
            return model.hidden({"decoder": side}, dtype=self.dtype, cache=self.cache)["decoder"]
        table, lengths = sources
        width = table.shape[1] * self.size
        keep = torch.arange(width, device=table.device) < lengths[:, None]
        x = model.decoder.source(side, self.dtype)
        across = Grid(len(table), width, keep)
        states: Tensor = model.decoder(
            x, side.layout, across=across, cache=self.cache, inputs=side.inputs
        )
        return states

    def encode(self, sources: Sequence[Sequence[int]], pages: Sequence[Sequence[int]]) -> None:
        """Read sources, and write what a decoder looks at in them into pages."""
        model = self.model
        assert isinstance(model, EncoderDecoderModel)
        lengths = torch.tensor([len(x) for x in sources])
        keep = torch.arange(int(lengths.max())) < lengths[:, None]  # R S
        ids = torch.zeros(keep.shape, dtype=torch.long)
        ids[keep] = torch.tensor([i for source in sources for i in source])
        at = torch.arange(keep.shape[1]).expand(len(keep), -1)
        slots = slots_of(table_of(pages), at, self.size)
        ids, mask, slots = (x.to(model.device) for x in (ids, keep, slots.where(keep, 0)))
        memory = model.encode(ids, None if bool(keep.all()) else mask, dtype=self.dtype)
        for i, j in enumerate(model.decoder.order):
            across: Any = model.decoder.layers[j].cross
            k, v = across.memory.cut(across.memory(memory))
            self.cache.stores[i].write(slots.flatten(), k, v)


def table_of(pages: Sequence[Sequence[int]]) -> Tensor:
    """The pages of each row, R P; 0 behind the last."""
    width = max(map(len, pages))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in pages])


def shapes(model: DecoderOnlyModel | EncoderDecoderModel) -> list[tuple[int, int]]:
    """Key/value heads and head size of each layer of the decoder; a model whose memory is not keys
    and values of tokens is refused."""
    stepper_for(model)  # refuses what cannot write
    if isinstance(model, EncoderDecoderModel) and not model.config.encoder.source.vocab:
        source = type(model.config.encoder.source).__name__
        raise _refused(f"an Engine takes ids, but the encoder's source is {source}")
    if model.extended:
        raise _refused("an Engine's pages have no keys or vectors that are learned ahead of a text")
    if model.vocab_head.placed:
        head = type(model.vocab_head).__name__
        raise _refused(f"an Engine's rows stand at places of their own, which {head} cannot score")
    stack: Any = model.config.decoder
    if not stack.steady:
        scaling = type(stack.relative.scaling).__name__
        raise _refused(
            f"an Engine's requests have nothing to do with one another, but with {scaling} the "
            f"longest text of a call turns all of them"
        )
    decoder: Any = model.decoder
    out = []
    for state, j in zip(decoder.new_cache().layers, decoder.order, strict=True):
        layer = decoder.layers[j]
        mixer = layer.attention.mixer
        odd = type(state.own) if type(mixer) in (Full, Window) else type(mixer)
        if odd not in (Growing, Ring):
            raise _refused(
                f"an Engine keeps keys and values in pages, which {odd.__name__} cannot use"
            )
        across = layer.cross.mixer if layer.has_cross else mixer
        mine, other = mixer.groups * mixer.size, across.groups * across.size
        if mine != other:
            raise _refused(
                f"an Engine has pages of one kind, but keys of self-attention have {mine} numbers "
                f"and those across {other}"
            )
        out.append((mixer.groups, mixer.size))
    return out


def _refused(why: str) -> ConfigError:
    return ConfigError(f"{why}; call generate, a batch at a time")
