"""A whole decoder, run lean."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.int8 import evened
from allformer.core.lean.cache import LeanCache
from allformer.core.lean.layer import Layer, Look, lean_norm
from allformer.core.lean.native import Heads
from allformer.core.lean.pages import Tokens
from allformer.core.lean.places import Biases, Turns, Vectors
from allformer.core.lean.products import MOST, Eight, Words, make_product
from allformer.core.lean.served import plain_model
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.precision import cast
from allformer.core.states.pages import PagedCache
from allformer.core.taps import listening


class LeanDecoder:
    """Of a model that `serves`; `int8` computes products with weights in eight bits.

    `dtype` is what is computed in (None: as the weights are). Weights are the model's own where
    nothing else is faster; of others it holds copies, as they were when it was made.
    """

    def __init__(
        self,
        model: EncoderDecoderModel | DecoderOnlyModel,
        int8: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        stack: Any = model.decoder
        source, head = stack.source, model.vocab_head
        self.dtype = dtype or source.embedding.weight.dtype
        self.table, self.scale = source.embedding.weight.detach(), source.scale
        self.source_norm = source.norm
        self.vectors = None
        if source.position is not None:
            self.vectors = Vectors(source.position, self.table.dtype)
        relative = stack.relative
        rotary = isinstance(stack.config.relative, config.Rotary)
        self.turns = Turns(relative, self.dtype) if rotary else None
        self.biases = Biases(relative, self.dtype) if relative is not None and not rotary else None
        copies = sum(p.numel() * p.element_size() for p in stack.parameters()) <= MOST
        make = partial(make_product, dtype=self.dtype, int8=int8, copies=copies)
        layers = [Layer(block, make, self.dtype) for block in stack.layers]
        self.layers = [layers[i] for i in stack.order]
        self.final = None
        if stack.final_norm is not None:
            self.final = lean_norm(stack.final_norm, self.dtype)
        self.head_scale: Any = head.scale
        bias = head.addend(self.dtype)
        words = cast(head.table.weight.detach(), self.dtype)
        bias = None if bias is None else bias.detach()
        if int8:
            words, even = evened(words.float())
            self.head_scale = even if head.scale is None else even * head.scale
        self.words = Eight(words, bias) if int8 else Words(words, bias, copies)

    @staticmethod
    def serves(model: nn.Module) -> bool:
        """A plain decoder on a CPU, at which nobody looks; any other the model itself runs."""
        return plain_model(model) and not (listening() or torch.is_grad_enabled())

    def new_cache(self, keep: Tensor | None = None) -> LeanCache:
        """Empty states; `keep` (rows × tokens, True = real) of a prompt with padding."""
        return LeanCache(len(self.layers), keep)

    def __call__(
        self,
        ids: Tensor,
        cache: LeanCache,
        memory: Tensor | None = None,
        memory_keep: Tensor | None = None,
    ) -> Tensor:
        """The states of new tokens, R N → R N dim; `memory` A S dim is needed but once."""
        rows, new = ids.shape
        if new > 1:
            cache.settle()
        if memory is not None:
            self._see(memory, memory_keep, cache)
        numbers = cache.numbers(new)
        x = self._embed(ids.reshape(rows // cache.copies, -1), cache.past, new, numbers)  # A M dim
        look = self._look(cache, new, len(x), numbers)
        for layer, state in zip(self.layers, cache.layers, strict=True):
            x = layer(x, state, look)
        cache.advance(new)
        x = x if self.final is None else self.final(x)
        return x.view(rows, new, -1)

    def rows(self, ids: Tensor, numbers: Tensor, tokens: Tokens, cache: PagedCache) -> Tensor:
        """The states of tokens that stand at `numbers` of rows of their own, N → N dim."""
        assert self.biases is None, "a bias for every pair of places"
        end, at = int(numbers.max()), numbers[:, None]
        x = self._embed(ids[:, None], end, 1, at)  # N 1 dim
        turns = None if self.turns is None else self.turns.at(end, 1, at)
        look = Look(turns=turns, tokens=tokens)
        for layer, state in zip(self.layers, cache.layers, strict=True):
            x = layer(x, state, look)
        x = x if self.final is None else self.final(x)
        return x[:, 0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return self.words(hidden if self.head_scale is None else hidden * self.head_scale)

    def _see(self, memory: Tensor, keep: Tensor | None, cache: LeanCache) -> None:
        """The encoder's keys and values, which stay."""
        for layer, state in zip(self.layers, cache.layers, strict=True):
            state.cross = layer.see(memory, keep)
        if keep is not None:
            seen = keep | ~keep.any(1, keepdim=True)  # a source of padding alone has zeros there
            bias = torch.zeros(seen.shape, dtype=self.dtype).masked_fill_(~seen, float("-inf"))
            cache.across = bias[:, None]  # A 1 S

    def _embed(self, ids: Tensor, past: int, new: int, numbers: Tensor | None) -> Tensor:
        """What the first layer reads."""
        x = F.embedding(ids, self.table)
        x = x if self.scale == 1.0 else x * self.scale
        if self.vectors is not None:
            x = x + self.vectors.at(past, new, numbers)[0]
        x = x if self.source_norm is None else self.source_norm(x)
        return cast(x, self.dtype)

    def _look(self, cache: LeanCache, new: int, sources: int, numbers: Tensor | None) -> Look:
        """What all layers have in common."""
        past, how = cache.past, self.layers[0].own
        turns = None if self.turns is None else self.turns.at(past, new, numbers)
        columns = cache.widen(new)
        biases = None
        if self.biases is not None:
            places = torch.arange(past, past + new)
            biases = self.biases.between(places, cache.places(columns))  # H N C
        if new > 1:
            mask = cache.mask(new, columns)
            mask = None if mask is None else mask[:, None]
            if biases is not None:
                causal = torch.ones(new, columns, dtype=torch.bool).tril(columns - new)
                mask = biases.masked_fill(~(causal if mask is None else mask), float("-inf"))
                mask = mask if mask.ndim == 4 else mask[None]
            look = Look(mask=mask, causal=mask is None, turns=turns)
        else:
            look = Look(_spread(cache.bias(columns, self.dtype), biases, sources, how), turns=turns)
        if cache.across is None:
            return look
        cross = self.layers[0].cross
        assert cross is not None
        seen = cache.across[:, None].expand(-1, cross.groups, -1, -1).flatten(0, 1)
        return look._replace(across=seen)


def _spread(bias: Tensor | None, biases: Tensor | None, sources: int, how: Heads) -> Tensor | None:
    """What is added for the columns, A K C, and for each head, H 1 C: together, A·G J·K C."""
    if bias is None and biases is None:
        return None
    each = how.heads // how.groups
    total = 0 if bias is None else bias[:, None, None]  # A 1 1 K C
    if biases is not None:
        total = total + biases.view(how.groups, each, *biases.shape[1:])  # G J 1 C
    assert isinstance(total, Tensor)
    copies = 1 if bias is None else bias.shape[1]
    whole = total.expand(sources, how.groups, each, copies, total.shape[-1])
    return whole.reshape(sources * how.groups, each * copies, -1)
