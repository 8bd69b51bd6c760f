"""A model that hears, as decoding asks of it: sound encoded once, then token after token.

    memory = listener.encode(mel)                        # A M T → A S dim
    heard = listener.begin(ids, memory, at=0)            # the tokens before the text, read once
    heard.state.select(rows)                             # texts move, or multiply
    logits = listener.step(tokens, heard.state)          # then the new tokens alone

Texts of one window share its keys and values, which are computed once and never copied: only what
the decoder remembers of its own tokens has a row for each text.

Legend: A windows, R texts (rows), M mel bins, T frames, S vectors of the encoder, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.lean import LeanCache, LeanDecoder
from allformer.core.lean.served import weights_of
from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import widen
from allformer.core.states import Cache
from allformer.speech.vocabulary import Vocabulary


class Remembered(Protocol):
    """What a decoder knows of the texts so far."""

    def select(self, rows: Tensor) -> None:
        """Keep, repeat and reorder texts; each stays with its own window."""


class Heard(NamedTuple):
    """After the tokens before the text: the scores `at` one of them, of what comes `next`, A V."""

    at: Tensor
    next: Tensor
    state: Any


class Listens(Protocol):
    """What decoding asks of a model."""

    vocabulary: Vocabulary
    places: int  # tokens that the decoder has room for

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def encode(self, mel: Tensor) -> Tensor:
        """Windows A M T → what the decoder looks at, A S dim."""

    def begin(self, ids: Tensor, memory: Tensor, at: int) -> Heard:
        """Read the tokens before the text, A L."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Read one token of each text, R: the scores of the next one, R V, in at least fp32."""


class Listener:
    """Of an encoder-decoder with a source of sound, and its vocabulary.

    On a CPU the decoder of a small model is run by `LeanDecoder`, which holds a copy of some
    weights; where they change, it is made anew. `int8`: with all of them in eight bits.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        vocabulary: Vocabulary,
        dtype: torch.dtype | None = None,
        int8: bool = False,
    ) -> None:
        self.model, self.vocabulary, self.int8 = model, vocabulary, int8
        self._lean: LeanDecoder | None = None
        self._made_of: tuple[Any, ...] = ()  # the weights of that
        self.dtype = dtype or next(model.parameters()).dtype
        longest = model.config.decoder.longest
        self.places = 448 if longest is None else longest

    @property
    def device(self) -> torch.device:
        return self.model.device

    def encode(self, mel: Tensor) -> Tensor:
        with torch.inference_mode():
            mel = mel.to(self.device)
            return self.model.states(input_features=mel, dtype=self.dtype)["encoder"]

    def begin(self, ids: Tensor, memory: Tensor, at: int) -> Heard:
        lean = self._find_lean()
        if lean is None:
            state = self.model.new_cache()
            hidden = self._read(ids, state, memory)[:, [at, -1]]  # of two tokens, not of all
            scores = widen(self.model.logits(hidden))
        else:
            state = lean.new_cache()
            scores = lean.logits(lean(ids, state, memory)[:, [at, -1]])
        return Heard(scores[:, 0], scores[:, 1], state)

    def step(self, tokens: Tensor, state: Cache) -> Tensor:
        if isinstance(state, LeanCache):
            assert self._lean is not None
            return self._lean.logits(self._lean(tokens[:, None], state)[:, -1])
        hidden = self._read(tokens[:, None], state)
        return widen(self.model.logits(hidden[:, -1]))

    def _find_lean(self) -> LeanDecoder | None:
        """What runs the decoder in place of the model, where it can."""
        if self.dtype != torch.float32 or not LeanDecoder.serves(self.model):
            return None
        now = weights_of(self.model)
        if self._lean is None or self._made_of != now:
            self._lean, self._made_of = LeanDecoder(self.model, self.int8), now
        return self._lean

    def _read(self, ids: Tensor, cache: Cache, memory: Tensor | None = None) -> Tensor:
        """The states of new tokens, R N dim; `memory` is needed but once."""
        decoder = self.model.decoder
        side = Side(cache.grid(ids.shape[0], ids.shape[1], None), {"input_ids": ids}, ids)
        x = decoder.source(side, self.dtype)
        hidden: Tensor = decoder(
            x, side.layout, memory=memory, across=Grid(ids.shape[0], 0, None), cache=cache
        )
        return hidden
