"""The stepper of decoders that run lean on a CPU (`core/lean`), found by `stepper_for`.

    stepper = lean_stepper(model)            # None: the model itself runs

What it holds of a model's weights is kept for the next call, as long as they are the same.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from allformer.config import BucketBias
from allformer.core.int8 import has_int8, to_int8
from allformer.core.lean import LeanCache, LeanDecoder
from allformer.core.lean.native import few_for
from allformer.core.lean.served import KINDS, plain_model, weights_of
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.precision import widen
from allformer.errors import ConfigError
from allformer.generate.stepper import FASTER, DecoderStepper, EncoderDecoderStepper, State

CHUNK = 512  # tokens of a prompt that are read at a time: what has a number for each pair is small
Plain = EncoderDecoderStepper | DecoderStepper


class Held(NamedTuple):
    """What was made of a model's weights, and which these were."""

    weights: tuple[Any, ...]
    lean: LeanDecoder
    encoder: nn.Module | None  # in eight bits


_HELD: WeakKeyDictionary[nn.Module, dict[torch.dtype, Held]] = WeakKeyDictionary()


class LeanStepper:
    """As the plain stepper of the same model, whose part it leaves to that where somebody listens
    or differentiates, or nothing is to be remembered."""

    def __init__(self, plain: Plain, dtype: torch.dtype) -> None:
        self.plain, self.dtype = plain, dtype
        self._held: Held | None = None

    @property
    def lean(self) -> LeanDecoder:
        """What runs the decoder."""
        if self._held is None:
            self._held = hold(self.plain.model, self.dtype)
            if self._held.encoder is not None:
                self.plain = _with_encoder(self.plain, self._held.encoder)
        return self._held.lean

    def open(
        self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True, **inputs: Any
    ) -> State:
        """As the plain one; the cache is another."""
        serves = use_cache and LeanDecoder.serves(self.plain.model)
        if not serves and self.dtype is torch.int8:
            raise ConfigError(
                "dtype=torch.int8 with use_cache=False, or while somebody looks or differentiates: "
                "eight bits are for writing alone; use torch.float32"
            )
        lean = self.lean if serves else None
        state = self.plain.open(input_ids, mask, use_cache, **inputs)
        if lean is not None and state.memory is not None:
            state.cache = lean.new_cache()
        elif lean is not None:
            state.cache, state.mask = lean.new_cache(state.mask), None  # it knows who is padding
        return state

    def prefill(self, ids: Tensor, state: State) -> Tensor:
        """The prompt, some of it at a time."""
        if not isinstance(state.cache, LeanCache):
            return self.plain.prefill(ids, state)
        *before, last = torch.split(ids[:, state.skip :], CHUNK, 1)
        for part in before:
            self._read(part, state, state.cache)
        return self._logits(last, state, state.cache)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Tokens that the cache has not seen."""
        if not isinstance(state.cache, LeanCache):
            return self.plain.step(tokens, state)
        return self._logits(tokens, state, state.cache)

    def verify(self, tokens: Tensor, state: State) -> Tensor:
        """As `step`, of every token."""
        if not isinstance(state.cache, LeanCache):
            return self.plain.verify(tokens, state)
        return widen(self.lean.logits(self._read(tokens, state, state.cache)))

    def forget(self, tokens: int, state: State) -> None:
        """Of rows that have no copies, each token is a column."""
        if isinstance(state.cache, LeanCache):
            assert state.cache.copies == 1
            state.forget(tokens)
        else:
            self.plain.forget(tokens, state)

    def _logits(self, tokens: Tensor, state: State, cache: LeanCache) -> Tensor:
        return widen(self.lean.logits(self._read(tokens, state, cache)[:, -1]))

    def _read(self, tokens: Tensor, state: State, cache: LeanCache) -> Tensor:
        hidden = self.lean(tokens, cache, state.memory, state.mask)
        state.memory = state.mask = None  # the cache has what it needs of them
        return hidden


def lean_stepper(
    model: EncoderDecoderModel | DecoderOnlyModel, dtype: torch.dtype | None = None
) -> LeanStepper | None:
    """For a plain decoder on a CPU; `dtype=torch.int8` is for those alone."""
    eight = dtype is torch.int8
    served = plain_model(model) and (eight or dtype is None or dtype in KINDS)
    if eight and not (served and has_int8()):
        raise ConfigError(
            "dtype=torch.int8 is for the usual decoders on a CPU with oneDNN; leave it out, or "
            "make the weights small: af.quantise(model, 'int8')"
        )
    if not served:
        _HELD.pop(model, None)  # it has moved, or learns: memory is wanted for other things
        return None
    own = next(model.parameters()).dtype
    wide = torch.float32 if eight else dtype
    if isinstance(model, EncoderDecoderModel):
        return LeanStepper(EncoderDecoderStepper(model, wide), dtype or own)
    return LeanStepper(DecoderStepper(model, wide), dtype or own)


FASTER.append(lean_stepper)


def lean_rows(
    model: EncoderDecoderModel | DecoderOnlyModel, dtype: torch.dtype | None
) -> LeanDecoder | None:
    """For an engine, whose rows have nothing in common: `lean_rows(model, None)`. None: the model
    itself runs; a bias for every pair of places is one for every row there."""
    served = plain_model(model) and (dtype is None or dtype in KINDS)
    if not served or isinstance(model.config.decoder.relative, BucketBias):
        return None
    return hold(model, dtype or next(model.parameters()).dtype).lean


def hold(model: EncoderDecoderModel | DecoderOnlyModel, dtype: torch.dtype) -> Held:
    """What is held of a model, made anew where its weights are others than before."""
    kinds = _HELD.setdefault(model, {})
    weights = weights_of(model)
    if dtype not in kinds or kinds[dtype].weights != weights:
        eight = dtype is torch.int8
        lean = LeanDecoder(model, eight, torch.float32 if eight else dtype)
        encoder = None
        if eight and isinstance(model, EncoderDecoderModel):
            encoder = _eight_bits(model.encoder)
        kinds[dtype] = Held(weights, lean, encoder)
    return kinds[dtype]


def _eight_bits(encoder: nn.Module) -> nn.Module:
    """A copy whose matrices are in eight bits; all else is the encoder's own."""
    same = {id(p): p for p in encoder.parameters()}
    small = copy.deepcopy(encoder, same)
    to_int8(small, few_for)
    return small


def _with_encoder(plain: Plain, encoder: nn.Module) -> Plain:
    """The same stepper of a model with another encoder."""
    other = copy.copy(plain.model)
    other._modules = {**plain.model._modules, "encoder": encoder}
    assert isinstance(other, EncoderDecoderModel)
    return EncoderDecoderStepper(other, plain.dtype)
