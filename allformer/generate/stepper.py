"""Models as one thing to a search: "the logits of the next token, for these rows, in this state".

    stepper = stepper_for(model)
    state = stepper.open(input_ids, attention_mask)          # the state is the caller's
    logits = stepper.step(ids, state)                        # rows L → rows V
    state.select(rows, sources=True)                       # rows leave, move or multiply

Legend: L tokens so far (of a decoder: the prompt and what came after), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

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

    def select(self, rows: Tensor, *, sources: bool) -> None:
        """Keep, repeat and reorder rows; `sources` unless each stays with its own source."""
        if self.cache is not None:
            self.cache.select(rows, cross=sources)
        if sources:
            self.mask = None if self.mask is None else self.mask.index_select(0, rows)
            self.memory = None if self.memory is None else self.memory.index_select(0, rows)


class Stepper(Protocol):
    """What a search asks of a model."""

    def open(self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True) -> State:
        """The state before the first step."""

    def step(self, ids: Tensor, state: State) -> Tensor:
        """The logits of the token after `ids` (rows L → rows V), in at least fp32."""


class EncoderDecoderStepper:
    """The source is encoded once; `ids` are the decoder's, from its start token on."""

    def __init__(self, model: EncoderDecoderModel, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype

    def open(self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True) -> State:
        """Encode; a mask that keeps everything is none."""
        mask = _some(mask)
        memory = self.model.encode(input_ids, mask, dtype=self.dtype)
        return State(self._cache() if use_cache else None, mask, memory)

    def step(self, ids: Tensor, state: State) -> Tensor:
        """Only what the cache has not seen is computed."""
        cache = self._cache() if state.cache is None else state.cache
        new = ids[:, cache.length :]
        logits = self.model.step(new, cache, state.memory, state.mask, dtype=self.dtype)
        if state.cache is not None:
            state.memory = None  # the cache has its keys and values
        return widen(logits)

    def _cache(self) -> Cache:
        return self.model.new_cache()


class DecoderStepper:
    """The prompt and what follows it are one sequence; padding stands left of the prompt."""

    def __init__(self, model: DecoderOnlyModel, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype

    def open(self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True) -> State:
        """Nothing is computed yet: the first step reads the prompt."""
        skip = padding_columns(mask)
        mask = None if mask is None else _some(mask[:, skip:])
        return State(self._cache() if use_cache else None, mask, skip=skip)

    def step(self, ids: Tensor, state: State) -> Tensor:
        """Only what the cache has not seen is computed."""
        cache = self._cache() if state.cache is None else state.cache
        ids, mask, where = ids[:, state.skip :], state.mask, None
        if mask is not None:  # what is said is never padding
            mask = F.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=True)
            # As in transformers' generate: only what is kept has a number, whatever the position.
            where = mask.long().cumsum(1).sub(1).clamp_min(0)[:, cache.length :]
        new = ids[:, cache.length :]
        return widen(self.model.step(new, cache, mask, position_ids=where, dtype=self.dtype))

    def _cache(self) -> Cache:
        return self.model.new_cache()


def stepper_for(model: object, dtype: torch.dtype | None = None) -> Stepper:
    """The stepper of a model; one that cannot generate is refused."""
    if isinstance(model, Model):
        for name, stack in model.config.stacks.items():
            if not stack.source.vocab:
                raise ConfigError(
                    f"{type(model).__name__} cannot generate from ids: its {name} has the source "
                    f"{type(stack.source).__name__}, which reads no tokens; use a model whose "
                    f"stacks have source=Tokens(…)"
                )
    if isinstance(model, EncoderDecoderModel):
        return EncoderDecoderStepper(model, dtype)
    if isinstance(model, DecoderOnlyModel):
        return DecoderStepper(model, dtype)
    raise ConfigError(
        f"{type(model).__name__} cannot generate: it has no decoder; "
        f"use a DecoderOnly or an EncoderDecoder"
    )


def padding_columns(mask: Tensor | None) -> int:
    """How many columns at the left are padding in every row: they need not be read."""
    return 0 if mask is None else int(mask.bool().any(0).long().argmax())


def _some(mask: Tensor | None) -> Tensor | None:
    return None if mask is None or bool(mask.all()) else mask.bool()
