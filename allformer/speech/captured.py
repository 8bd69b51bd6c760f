"""A listener on a GPU whose encoder and whose step of decoding are CUDA graphs.

    listener = CapturedListener(model, vocabulary)       # decoding asks it as any other
    memory = listener.encode(mel)                        # a graph for each number of windows
    heard = listener.begin(ids, memory, at=0)
    logits = listener.step(tokens, heard.state)          # a graph for each number of texts

A step is hundreds of kernels that take microseconds each: a graph launches them at once. Its keys
and values lie in memory of a fixed size, which the next window of as many texts uses again: a state
is good until the next `begin`. Where there is no GPU the same runs without graphs.

Legend: A windows, R texts (rows), M mel bins, T frames, S vectors of the encoder, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allformer.core.fused import capturing
from allformer.core.graph import Captured, on_side_stream
from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import widen
from allformer.core.states import Cache, Static
from allformer.speech.listener import Heard, Listener
from allformer.speech.vocabulary import Vocabulary


class Graph:
    """One call on inputs that stand still: `Graph(call, x)(x)`; on a CPU the call itself."""

    def __init__(self, call: Callable[[Tensor], Tensor], given: Tensor) -> None:
        self.call, self.given = call, given.clone()
        self.captured: Captured | None = None
        if given.is_cuda:
            with capturing():
                for _ in range(2):  # library handles, kernels that are compiled
                    on_side_stream(lambda: call(self.given))
                self.captured = Captured(lambda: call(self.given))

    def __call__(self, given: Tensor) -> Tensor:
        """What it gives stands until the next call."""
        self.given.copy_(given)
        if self.captured is None:
            return self.call(self.given)
        result: Tensor = self.captured.replay()
        return result


class StaticTexts:
    """What the decoder knows of R texts: a cache of a fixed size, and the graph of a step."""

    def __init__(self, cache: Cache, rows: int) -> None:
        self.cache, self.rows = cache, rows
        self.graph: Graph | None = None
        self.moved = False  # to tensors of another size, which no graph knows

    def select(self, rows: Tensor) -> None:
        """Texts change places, or multiply: then they go on without a graph."""
        self.moved = self.moved or len(rows) != self.rows
        self.cache.select(rows)


class CapturedListener(Listener):
    """As `Listener`, by graphs."""

    def __init__(
        self, model: EncoderDecoderModel, vocabulary: Vocabulary, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(model, vocabulary, dtype)
        self._encoders: dict[torch.Size, Graph] = {}
        self._texts: dict[int, StaticTexts] = {}

    @torch.inference_mode()
    def encode(self, mel: Tensor) -> Tensor:
        mel = mel.to(self.device, self.dtype)
        if mel.shape not in self._encoders:
            self._encoders[mel.shape] = Graph(super().encode, mel)
        return self._encoders[mel.shape](mel).clone()

    def begin(self, ids: Tensor, memory: Tensor, at: int) -> Heard:
        texts = self._texts.get(len(ids))
        if texts is None or texts.moved:
            layers = len(self.model.decoder.order)
            texts = StaticTexts(Static.cache(layers, self.places, self.device), len(ids))
            self._texts[len(ids)] = texts
        hidden = self._anew(texts.cache, ids, memory)
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
        if state.moved:
            return self._step(tokens, state.cache)
        if state.graph is None:
            # Warming up moves the counter on, which is then put back.
            before = state.cache.length.clone()
            state.graph = Graph(lambda given: self._step(given, state.cache), tokens)
            state.cache.length.copy_(before)
        logits: Tensor = state.graph(tokens)
        return logits

    def _step(self, tokens: Tensor, cache: Cache) -> Tensor:
        return widen(self.model.logits(self._read(tokens[:, None], cache)[:, -1]))
