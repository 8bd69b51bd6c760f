"""Models as one thing to a search: "the logits of the next token, for these rows, in this state".

    stepper = stepper_for(model)
    state = stepper.open(input_ids, attention_mask)          # the state is the caller's
    logits = stepper.prefill(ids, state)                     # the prompt is read once: rows V
    state.select(rows, sources=True)                         # rows leave, move or multiply
    logits = stepper.step(tokens, state)                     # then the new tokens alone

Nothing in a step waits for the device.

Legend: L tokens of the prompt, N new ones, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.lean.native import few_for
from allformer.core.matmul import few_rows_by
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel, Model
from allformer.core.precision import widen
from allformer.core.states import Cache
from allformer.errors import ConfigError


@dataclass
class State:
    """What a search carries from step to step; every tensor has one row for each running row."""

    cache: Cache | None  # None: everything is read again at each step
    mask: Tensor | None  # of the source, or of a decoder's prompt; True = a real token
    memory: Tensor | None = None  # the encoder's output
    skip: int = 0  # columns at the left that are padding in every row
    read: Tensor | None = None  # what was read so far: without a cache, or where it is recorded
    record: bool = False  # whether it is, beside a cache
    ahead: int | None = None  # how many tokens may come in all; None: nobody has said

    def spread(self, rows: Tensor, copies: int, moves: bool) -> None:
        """Each row becomes `copies` in a row, as `rows` says (0 0 1 1 …), which part from here;
        `moves`: they are beams, which go on from one another."""
        self.select(rows, sources=True)

    def keep(self, stay: Tensor, together: int = 1) -> None:
        """Only these go on: rows, or so many rows `together` (beams of one)."""
        rows = stay
        if together > 1:
            each = torch.arange(together, device=stay.device)
            rows = (stay[:, None] * together + each).flatten()
        self.select(rows, sources=True)

    def move(self, beam: Tensor) -> None:
        """Beams go on from others of their row: `beam` rows K says from which."""
        rows, beams = beam.shape
        first = torch.arange(rows, device=beam.device)[:, None] * beams
        self.select((first + beam).flatten(), sources=False)

    def plainly(self) -> None:
        """Be as the plain steppers have it, so that it can be cut, and kept for another search."""

    def close(self) -> None:
        """Nothing more is asked of it."""

    def select(self, rows: Tensor, *, sources: bool) -> None:
        """Keep, repeat and reorder rows; `sources` unless each stays with its own source."""
        if self.cache is not None:
            self.cache.select(rows, cross=sources)
        if self.read is not None:
            self.read = self.read.index_select(0, rows)
        if sources:
            self.mask = None if self.mask is None else self.mask.index_select(0, rows)
            self.memory = None if self.memory is None else self.memory.index_select(0, rows)

    def unread(self, tokens: Tensor) -> Tensor:
        """What the model must read for these new tokens: all that there is, without a cache."""
        if self.cache is not None and not self.record:
            return tokens
        self.read = tokens if self.read is None else torch.cat([self.read, tokens], dim=1)
        return self.read if self.cache is None else tokens

    def forget(self, tokens: int) -> None:
        """The last `tokens` that the cache has read are as if they had never been."""
        assert self.cache is not None, "without a cache there is nothing to take back"
        self.cache.cut(int(self.cache.length) - tokens)
        if self.read is not None:
            self.read = self.read[:, : self.read.shape[1] - tokens]


class Stepper(Protocol):
    """What a search asks of a model."""

    def open(
        self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True, **inputs: Any
    ) -> State:
        """The state before anything is read; `inputs` are those of the encoder's mixers, or what
        it reads in place of `input_ids`."""

    def prefill(self, ids: Tensor, state: State) -> Tensor:
        """Read the prompt (rows L): the logits of what follows (rows V), in at least fp32."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Read the new tokens (rows N) alone: the logits of what follows (rows V)."""


class PlainStepper(Stepper, Protocol):
    """One that can also try tokens out: `verify`, then `forget` those that were wrong."""

    def verify(self, tokens: Tensor, state: State) -> Tensor:
        """Read the new tokens (rows N): the logits of what follows each of them (rows N V)."""

    def forget(self, tokens: int, state: State) -> None:
        """Take back the last `tokens` that were read."""


class EncoderDecoderStepper:
    """The source is encoded once; the prompt is the decoder's, from its start token on."""

    def __init__(self, model: EncoderDecoderModel, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype

    def open(
        self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True, **inputs: Any
    ) -> State:
        """Encode; a mask that keeps everything is none."""
        mask = _some(mask)
        ids = input_ids if self.model.config.encoder.source.vocab else None
        memory = self.model.encode(ids, mask, dtype=self.dtype, **inputs)
        return State(self.model.new_cache() if use_cache else None, mask, memory)

    def prefill(self, ids: Tensor, state: State) -> Tensor:
        """The first step is like any other."""
        return self.step(ids, state)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Tokens that the cache has not seen."""
        return self._read(tokens, state)

    def verify(self, tokens: Tensor, state: State) -> Tensor:
        """As `step`, of every token."""
        return self._read(tokens, state, every=True)

    def forget(self, tokens: int, state: State) -> None:
        """The source stays."""
        state.forget(tokens)

    def _read(self, tokens: Tensor, state: State, every: bool = False) -> Tensor:
        new = state.unread(tokens)
        cache = self.model.new_cache() if state.cache is None else state.cache
        how: dict[str, Any] = {"dtype": self.dtype, "every": every}
        with few_rows_by(few_for):
            logits = self.model.step(new, cache, state.memory, state.mask, **how)
        if state.cache is not None:
            state.memory = None  # the cache has its keys and values
        return widen(logits)


class DecoderStepper:
    """The prompt and what follows it are one sequence; padding stands left of the prompt."""

    def __init__(self, model: DecoderOnlyModel, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype

    def open(
        self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True, **inputs: Any
    ) -> State:
        """Nothing is computed yet: `prefill` reads the prompt."""
        skip = padding_columns(mask)
        mask = None if mask is None else _some(mask[:, skip:])
        return State(self.model.new_cache() if use_cache else None, mask, skip=skip)

    def prefill(self, ids: Tensor, state: State) -> Tensor:
        """Columns that are padding in every row are not read."""
        return self._read(ids[:, state.skip :], state)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """What is said is never padding."""
        if state.mask is not None:
            state.mask = F.pad(state.mask, (0, tokens.shape[1]), value=True)
        return self._read(tokens, state)

    def verify(self, tokens: Tensor, state: State) -> Tensor:
        """As `step`, of every token."""
        if state.mask is not None:
            state.mask = F.pad(state.mask, (0, tokens.shape[1]), value=True)
        return self._read(tokens, state, every=True)

    def forget(self, tokens: int, state: State) -> None:
        """What was said goes out of the mask too."""
        state.forget(tokens)
        if state.mask is not None:
            state.mask = state.mask[:, : state.mask.shape[1] - tokens]

    def _read(self, tokens: Tensor, state: State, every: bool = False) -> Tensor:
        new, where = state.unread(tokens), None
        cache = self.model.new_cache() if state.cache is None else state.cache
        if state.mask is not None:
            # As in transformers' generate: only what is kept has a number, whatever the position.
            where = state.mask.cumsum(1)[:, -new.shape[1] :].sub(1).clamp_min(0)
        how: dict[str, Any] = {"dtype": self.dtype, "every": every}
        with few_rows_by(few_for):
            logits = self.model.step(new, cache, state.mask, position_ids=where, **how)
        return widen(logits)


# Faster ways that serve some models, on some devices: each adds itself, and gives None elsewhere.
FASTER: list[Callable[[Any, torch.dtype | None], Stepper | None]] = []


def stepper_for(model: object, dtype: torch.dtype | None = None) -> Stepper:
    """The fastest stepper of a model; one that cannot generate is refused."""
    if isinstance(model, Model):
        stacks = model.config.stacks
        if isinstance(model, EncoderDecoderModel):  # its encoder may read anything
            stacks = {"decoder": model.config.decoder}
        for name, stack in stacks.items():
            if not stack.source.vocab:
                raise ConfigError(
                    f"{type(model).__name__} cannot generate from ids: its {name} has the source "
                    f"{type(stack.source).__name__}, which reads no tokens; use a model whose "
                    f"stacks have source=Tokens(…)"
                )
    if isinstance(model, EncoderDecoderModel | DecoderOnlyModel):
        faster = (make(model, dtype) for make in FASTER)
        found = next((stepper for stepper in faster if stepper is not None), None)
        if found is not None:
            return found
    if isinstance(model, EncoderDecoderModel):
        return EncoderDecoderStepper(model, dtype)
    if isinstance(model, DecoderOnlyModel):
        return DecoderStepper(model, dtype)
    raise ConfigError(
        f"{type(model).__name__} cannot generate: it has no decoder; "
        f"use a DecoderOnly or an EncoderDecoder"
    )


def check_dtype(dtype: torch.dtype | None) -> None:
    """Refuse what nothing can be computed in."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return
    raise ConfigError(f"dtype={dtype!r} cannot be computed in; try torch.bfloat16, or leave it out")


def plain_stepper(
    model: EncoderDecoderModel | DecoderOnlyModel, dtype: torch.dtype | None = None
) -> PlainStepper:
    """The stepper whose state can be taken back, kept for another call, and chosen."""
    if isinstance(model, EncoderDecoderModel):
        return EncoderDecoderStepper(model, dtype)
    return DecoderStepper(model, dtype)


def padding_columns(mask: Tensor | None) -> int:
    """How many columns at the left are padding in every row: they need not be read."""
    return 0 if mask is None else int(mask.bool().any(0).long().argmax())


def _some(mask: Tensor | None) -> Tensor | None:
    return None if mask is None or bool(mask.all()) else mask.bool()
