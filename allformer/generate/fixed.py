"""Guesses judged by a CUDA graph: keys and values lie in memory of a fixed size, as does the guess.

To read a few tokens is hundreds of kernels of microseconds each; a graph launches them at once. A
guess is filled up to one width, so that one graph serves, and what the filler left behind is taken
back with the guesses that were wrong: the device's counter goes back, nothing else moves.

A graph is captured in each call anew, behind two rounds by hand. What it cannot serve goes the
plain way (`serves`), and so do rows with padding before them, whose masks grow.

Legend: R rows, L tokens of the prompt, N new ones, W the width of a round, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.states import Growing, Static
from allformer.core.taps import listening
from allformer.generate.graph import CAPTURES, Graph
from allformer.generate.lean import lean_stepper
from allformer.generate.static import unseen
from allformer.generate.stepper import PlainStepper, State, plain_stepper

WORTH = 16  # tokens to come: capturing costs about three rounds by hand
CHUNK = 512  # tokens of a prompt at a time: each has a mask over the whole room


def serves(model: EncoderDecoderModel | DecoderOnlyModel, room: int, ahead: int) -> bool:
    """Whether rounds of a model can be captured, with `room` places in all, and are worth it with
    `ahead` tokens to come."""
    longest = model.config.decoder.longest  # a filler has a position too
    if model.device.type not in CAPTURES or ahead <= WORTH or model.training or listening():
        return False
    if longest is not None and room > longest:
        return False
    if unseen(model) is not None:
        return False
    return all(type(layer.own) is Growing for layer in model.new_cache().layers)


def quickest(
    model: EncoderDecoderModel | DecoderOnlyModel,
    prompt: int,
    ahead: int,
    width: int,
    copies: int = 1,
    dtype: torch.dtype | None = None,
) -> PlainStepper:
    """The stepper for rounds of up to `width` tokens behind a prompt, with `ahead` tokens to come
    in all, and so many `copies` of each row: `quickest(model, 128, 200, width=11)`.

    By graphs where there are any; else the lean way, whose copies cannot be taken back."""
    room = prompt + ahead + width
    if serves(model, room, ahead):
        return FixedStepper(model, room, width, dtype)
    lean = lean_stepper(model, dtype) if copies == 1 else None
    return plain_stepper(model, dtype) if lean is None else lean


class FixedStepper:
    """As the plain stepper, in `room` places; up to `width` tokens are read by a graph."""

    def __init__(
        self,
        model: EncoderDecoderModel | DecoderOnlyModel,
        room: int,
        width: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.room, self.width = model, room, width
        self.plain = plain_stepper(model, dtype)
        self.rounds: dict[int, Round] = {}  # by the number of rows

    def open(
        self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True, **inputs: Any
    ) -> State:
        """As the plain one; with padding before a row it stays that."""
        state = self.plain.open(input_ids, mask, use_cache, **inputs)
        if use_cache and (state.mask is None or isinstance(self.model, EncoderDecoderModel)):
            layers = len(self.model.decoder.order)
            state.cache = Static.cache(layers, self.room, self.model.device)
        return state

    def prefill(self, ids: Tensor, state: State) -> Tensor:
        """The prompt, piece by piece."""
        if not _fixed(state):
            return self.plain.prefill(ids, state)
        read = ids[:, state.skip :]
        logits = self.plain.step(read[:, :CHUNK], state)
        for first in range(CHUNK, read.shape[1], CHUNK):
            logits = self.plain.step(read[:, first : first + CHUNK], state)
        return logits

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """The last of `verify`."""
        return (
            self.verify(tokens, state)[:, -1] if _fixed(state) else self.plain.step(tokens, state)
        )

    def verify(self, tokens: Tensor, state: State) -> Tensor:
        """R N → R N V, which stand until the next round."""
        rows, count = tokens.shape
        if not _fixed(state) or count > self.width:
            return self.plain.verify(tokens, state)
        if rows not in self.rounds:
            given, plain = tokens.new_zeros(rows, self.width), self.plain
            self.rounds[rows] = Round(lambda: plain.verify(given, state), given)
        logits = self.rounds[rows](tokens)
        self.forget(self.width - count, state)
        return logits[:, :count]

    def forget(self, tokens: int, state: State) -> None:
        """The device counts, so nothing is waited for."""
        if not _fixed(state):
            self.plain.forget(tokens, state)
        elif tokens:
            assert state.cache is not None
            assert isinstance(state.cache.length, Tensor)
            state.cache.length.sub_(tokens)


class Round:
    """`call()` reads the tokens `given` (R W): by hand at first, then as a graph."""

    def __init__(self, call: Callable[[], Tensor], given: Tensor) -> None:
        self.given = given
        self.graph = Graph(call, given.device, lambda: None)

    def __call__(self, tokens: Tensor) -> Tensor:
        self.given[:, : tokens.shape[1]] = tokens
        return self.graph()


def _fixed(state: State) -> bool:
    return state.cache is not None and isinstance(state.cache.length, Tensor)
