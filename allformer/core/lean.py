"""A decoder behind an encoder, on a CPU, token after token: the same numbers with fewer calls.

    if LeanDecoder.serves(model):
        lean = LeanDecoder(model)
        hidden = lean(ids, cache, memory)          # memory once; then the new tokens alone
        lean.logits(hidden[:, -1])

A step of a small model is hundreds of small operations, and what they cost is mostly the way to
them. Here a layer is nine products and what stands between them, from weights that were looked up
once. The cache is the model's own, but for the encoder's keys, which lie with their last two axes
exchanged: a step's product with them reads memory in order then.

Legend: A windows (sources), R rows (texts), N new tokens, S vectors of the encoder, H heads, D head
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.int8 import Int8, Int8Few
from allformer.core.linear import Fused, Linear
from allformer.core.model import EncoderDecoderModel
from allformer.core.states import Cache, Growing, LayerState
from allformer.core.taps import listening

Product = Callable[[Tensor], Tensor]


class Norm(NamedTuple):
    """A LayerNorm's numbers."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Times(NamedTuple):
    """x Wᵀ + b."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Words(NamedTuple):
    """h Wᵀ for a whole vocabulary, from a copy of W that lies the other way round: of few rows that
    is up to a third faster."""

    turned: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.turned


class Layer(NamedTuple):
    """One layer's parts."""

    norms: tuple[Norm, Norm, Norm]
    qkv: Product
    out: Product
    query: Product
    memory: Product
    across: Product
    up: Product
    down: Product
    act: Callable[[Tensor], Tensor]
    heads: int
    scales: tuple[float, float]  # of its own scores, and of those across


class LeanCache(Cache):
    """A cache whose encoder's keys and values lie as a `LeanDecoder` reads them."""


class LeanDecoder:
    """Of a model that `serves`; `int8` computes products with weights in eight bits."""

    def __init__(self, model: EncoderDecoderModel, int8: bool = False) -> None:
        source: Any = model.decoder.source
        self.table, self.scale = source.embedding.weight, source.scale
        position = source.position
        self.places = position.weight[position.config.offset :]
        layers: Any = model.decoder.layers
        self.layers = [_layer(layers[i], int8) for i in model.decoder.order]
        self.final = _norm(model.decoder.final_norm)
        words = model.vocab_head.table.weight
        self.words = Int8(words, None) if int8 else Words(words.detach().t().contiguous())

    @staticmethod
    def serves(model: EncoderDecoderModel) -> bool:
        """A plain decoder in fp32 on a CPU (Whisper's), at which nobody looks; any other the model
        itself runs."""
        weight = next(model.parameters())
        return (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and not (model.training or listening() or torch.is_grad_enabled())
            and _plain(model.config)
            and all(
                type(part) in (Linear, Fused) and part.delta is None
                for part in model.decoder.modules()
                if isinstance(part, torch.nn.Linear)
            )
        )

    def new_cache(self) -> LeanCache:
        """Empty states."""
        return LeanCache(Growing() for _ in self.layers)

    def __call__(self, ids: Tensor, cache: LeanCache, memory: Tensor | None = None) -> Tensor:
        """The states of new tokens, R N → R N dim; `memory` A S dim is needed but once."""
        past, new = cache.length, ids.shape[1]
        assert isinstance(past, int), "the places are counted here, not on a device"
        x = F.embedding(ids, self.table)
        x = (x if self.scale == 1.0 else x * self.scale) + self.places[past : past + new]
        for layer, state in zip(self.layers, cache.layers, strict=True):
            own, cross, feed = layer.norms
            x = x + layer.out(_within(layer, own(x), state.own))
            if memory is not None:
                state.cross = _seen(layer, memory)
            x = x + layer.across(_across(layer, cross(x), state))
            x = x + layer.down(layer.act(layer.up(feed(x))))
        cache.advance(new)
        return self.final(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return self.words(hidden)


def _within(layer: Layer, x: Tensor, state: Any) -> Tensor:
    """Self-attention, R N dim."""
    rows, new, dim = x.shape
    heads = layer.qkv(x).view(rows, new, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)  # 3 R H N D
    q, k, v = heads.unbind(0)
    first = state.length == 0
    k, v = state.update(k, v, None)
    mask = None
    if new > 1 and not first:
        mask = torch.ones(new, k.shape[2], dtype=torch.bool).tril(k.shape[2] - new)
    out = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=new > 1 and first, scale=layer.scales[0]
    )
    return out.transpose(1, 2).reshape(rows, new, dim)


def _seen(layer: Layer, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The encoder's keys A·H D S and values A·H S D."""
    sources, seen, _ = memory.shape
    both = layer.memory(memory).view(sources, seen, 2, layer.heads, -1)
    keys, values = both.permute(2, 0, 3, 1, 4).flatten(1, 2).unbind(0)  # A·H S D
    return keys.transpose(1, 2).contiguous(), values.contiguous()


def _across(layer: Layer, x: Tensor, state: LayerState) -> Tensor:
    """Cross-attention, R N dim; texts of one source ask side by side, R/A·N queries of it."""
    assert state.cross is not None, "memory is given with the first tokens"
    keys, values = state.cross
    heads = layer.heads
    q = layer.query(x).view(len(keys) // heads, -1, heads, x.shape[-1] // heads)
    q = (q * layer.scales[1]).transpose(1, 2).flatten(0, 1)  # A·H R/A·N D
    out = torch.bmm(torch.bmm(q, keys).softmax(-1), values)
    return out.view(-1, heads, *out.shape[1:]).transpose(1, 2).reshape(x.shape)


def _layer(block: Any, int8: bool) -> Layer:
    few, many = (Int8Few, Int8) if int8 else (Times, Times)

    def part(linear: Any, make: Any = few) -> Product:
        product: Product = make(linear.weight.detach(), linear.addend(linear.weight.dtype))
        return product

    norms = (_norm(block.attention_norm), _norm(block.cross_norm), _norm(block.feed_norm))
    own, cross, feed = block.attention, block.cross, block.feed
    return Layer(
        norms, part(own.qkv), part(own.out), part(cross.query), part(cross.memory, many),
        part(cross.out), part(feed.up), part(feed.down), feed.act, own.mixer.heads,
        (own.mixer.scale, cross.mixer.scale),
    )  # fmt: skip


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def _plain(tree: config.EncoderDecoder) -> bool:
    """Whether the decoder is nothing but what is written down here."""
    stack = tree.decoder
    source: Any = stack.source
    tokens = type(source) is config.Tokens and not source.types
    placed = isinstance(stack.position, config.Learned) and stack.position.count != "ids"
    others = (stack.relative, stack.between, stack.flow, stack.source_norm, source.width)
    bare = all(x is None for x in others)
    normed = stack.final_norm is not None and stack.final_norm.kind == "layer"
    head = tree.head
    words = isinstance(head, config.LMHead) and not (head.transform or head.bias or head.offset)
    scores = words and getattr(head, "scale", None) is None
    return all((tokens, placed, bare, normed, scores, stack.causal)) and all(
        _plain_block(block, stack.dim) for block in stack.blocks
    )


def _plain_block(block: config.Block, dim: int) -> bool:
    attentions = (block.attention, block.cross)
    full = all(
        x is not None and type(x.mixer) is config.Full and x.groups == x.heads
        and x.heads * x.size(dim) == dim
        for x in attentions
    )  # fmt: skip
    alike = block.cross is not None and block.cross.heads == block.attention.heads
    norm = block.norm_at == "pre" and block.norm.kind == "layer" and block.scale is None
    return full and alike and norm and not block.feed.gated
