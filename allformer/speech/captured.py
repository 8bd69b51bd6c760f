"""A listener on a GPU whose encoder and whose step of decoding are CUDA graphs.

    listener = CapturedListener(model, vocabulary)       # decoding asks it as any other
    memory = listener.encode(mel)                        # a graph for each number of windows
    heard = listener.begin(ids, memory, at=0)
    logits = listener.step(tokens, heard.state)          # a graph for each number of texts

A step is hundreds of kernels that take microseconds each: a graph launches them at once. Its keys
and values lie in memory of a fixed size, which later windows of as many texts use again. The first
calls of a size, texts that multiply (beams), and what cannot be captured go the plain way.

Legend: A windows, R texts (rows), M mel bins, T frames, S vectors of the encoder, V vocabulary.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import widen
from allformer.core.states import Cache, Static
from allformer.core.taps import listening
from allformer.generate.graph import Graph
from allformer.speech.listener import Heard, Listener
from allformer.speech.vocabulary import Vocabulary

MOST = 4  # sizes whose memory is kept: of batches, the usual one and what is left at the end


class Still:
    """One call on inputs that stand still: `Still(call, x)(x)`."""

    def __init__(self, call: Callable[[Tensor], Tensor], given: Tensor) -> None:
        self.call, self.given = call, given.clone()
        self.graph = Graph(partial(call, self.given), given.device, lambda: None)

    def __call__(self, given: Tensor) -> Tensor:
        """What it gives stands until the next call."""
        if listening():  # a graph shows nothing
            return self.call(given)
        self.given.copy_(given)
        return self.graph()


class Room:
    """Memory of a fixed size for R texts, and a step in it."""

    def __init__(self, cache: Cache, rows: int) -> None:
        self.cache, self.rows = cache, rows
        self.step: Still | None = None


class Texts:
    """What the decoder knows of some texts. They have a room to themselves, which others get when
    nobody asks for these any more."""

    def __init__(self, model: EncoderDecoderModel, room: Room, idle: list[Room]) -> None:
        self.model, self.cache = model, room.cache
        self.room: Room | None = room
        self._leave = weakref.finalize(self, idle.append, room)

    def select(self, rows: Tensor) -> None:
        """Texts change places, or multiply: then they go on in memory that grows."""
        if self.room is None or len(rows) == self.room.rows:
            self.cache.select(rows)
            return
        old, length = self.cache, int(self.cache.length)
        self.cache = self.model.new_cache()
        self.cache.length = length
        for mine, other in zip(self.cache.layers, old.layers, strict=True):
            mine.own.resume(other.own, rows, length)
            assert other.cross is not None
            mine.cross = other.cross[0].clone(), other.cross[1].clone()
        self.room = None
        self._leave()


class CapturedListener(Listener):
    """As `Listener`, by graphs."""

    def __init__(
        self, model: EncoderDecoderModel, vocabulary: Vocabulary, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(model, vocabulary, dtype)
        self._encoders: dict[torch.Size, Still] = {}
        self._idle: dict[int, list[Room]] = {}  # by the number of texts
        self._lock = threading.Lock()

    @torch.inference_mode()
    def encode(self, mel: Tensor) -> Tensor:
        mel = mel.to(self.device, self.dtype)
        with self._lock:  # what it reads and what it gives are the same tensors each time
            encode = _recent(self._encoders, mel.shape) or Still(super().encode, mel)
            self._encoders[mel.shape] = encode
            return encode(mel).clone()

    def begin(self, ids: Tensor, memory: Tensor, at: int) -> Heard:
        with self._lock:
            idle: list[Room] | None = _recent(self._idle, len(ids))
            idle = self._idle[len(ids)] = [] if idle is None else idle
            room = idle.pop() if idle else None
        if room is None:
            layers = len(self.model.decoder.order)
            room = Room(Static.cache(layers, self.places, self.device), len(ids))
        texts = Texts(self.model, room, idle)
        hidden = self._anew(room.cache, ids, memory)
        scores = widen(self.model.logits(hidden[:, [at, -1]]))
        return Heard(scores[:, 0], scores[:, 1], texts)

    def _anew(self, cache: Cache, ids: Tensor, memory: Tensor) -> Tensor:
        """Read the first tokens; the encoder's keys and values come to lie where the graph of a
        step looks for them."""
        assert isinstance(cache.length, Tensor)
        cache.length.zero_()
        places = [layer.cross for layer in cache.layers]
        for layer in cache.layers:
            layer.cross = None
        hidden = self._read(ids, cache, memory)
        for layer, old in zip(cache.layers, places, strict=True):
            assert layer.cross is not None
            if old is None:
                layer.cross = layer.cross[0].contiguous(), layer.cross[1].contiguous()
                continue
            for mine, new in zip(old, layer.cross, strict=True):
                mine.copy_(new)
            layer.cross = old
        return hidden

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        room: Room | None = state.room
        if room is None:
            return self._step(tokens, state.cache)
        if room.step is None:
            cache = room.cache
            room.step = Still(lambda given: self._step(given, cache), tokens)
        return room.step(tokens)

    def _step(self, tokens: Tensor, cache: Cache) -> Tensor:
        return widen(self.model.logits(self._read(tokens[:, None], cache)[:, -1]))


def _recent(kept: dict[Any, Any], key: Any) -> Any:
    """What is kept under a key, moved to the end; for a new one the oldest makes room."""
    if key not in kept and len(kept) == MOST:
        del kept[next(iter(kept))]
    return kept.pop(key, None)
