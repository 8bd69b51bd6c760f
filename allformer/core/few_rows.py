"""A step of decoding at the speed of the memory: one new token of each of a few rows, on a GPU.

    if FewRows.serves(model, torch.bfloat16, rows=1):
        few = FewRows(model)
        logits = few.step(tokens, cache)          # R 1 → R V; the cache is of static states

One token needs every weight once, and little else; a step is as fast as weights can be read if
nothing stands between two products. So a layer is five kernels: norm and q, k, v; attention, which
turns and remembers the new token; the way out with the residual; norm, gate and activation; the way
back with the residual. Of more rows than `FEW` the products are cuBLAS's, and what lies between is
fused as in training. What a model computes is the same, rounded in the same places, summed in
another order.

Legend: R rows, V vocabulary, H heads, D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer import config
from allformer.core.decoder_only import DecoderOnlyModel
from allformer.core.fused import HALF, capturing, has_triton, modern
from allformer.core.fused.feed import KNOWN
from allformer.core.fused.matrix import Gain, Matrix, gain_of, matrices_of
from allformer.core.fused.norm import add_norm, norm_of_sum
from allformer.core.fused.one_query import one_query
from allformer.core.fused.times import FEW, FEW_PACKED, kernel_of, times
from allformer.core.fused.turns import Turns
from allformer.core.inputs import Side
from allformer.core.relatives.rotary import Turn
from allformer.core.states import Cache, Static
from allformer.core.taps import listening

MOST = 1024  # rows: beyond, a step is no longer bound by the memory
WIDEST = 256  # of a head
TICKS = 1024  # programs that may share a group's keys: far more than a chip has at a time


class Layer(NamedTuple):
    """One layer's numbers, and the modules that they are of."""

    block: Any
    norms: tuple[Gain, Gain]
    qkv: tuple[Matrix, ...]  # one, or several side by side
    out: Matrix
    up: Matrix
    gate: Matrix | None
    down: Matrix


class FewRows:
    """Of a model that it `serves`: a plain decoder with full attention and norms before its
    sub-layers (GPT-2, LLaMA), its weights as they are or in eight or four bits."""

    def __init__(self, model: DecoderOnlyModel) -> None:
        self.model = model
        dtype = _dtype(model)
        stack: Any = model.decoder
        self.layers = [_layer(stack.layers[i], dtype) for i in stack.order]
        self.final = None if stack.final_norm is None else gain_of(stack.final_norm)
        self.words = _words(model, dtype)
        self.packed = any(x.bits is not None for layer in self.layers for x in _all(layer))
        mixer = stack.layers[0].attention.mixer
        self.heads, self.scale = mixer.heads, mixer.scale
        self.angles: dict[int, Turns] = {}  # by room
        self.ticks = torch.zeros(TICKS, dtype=torch.int32, device=self.words.weight.device)

    @staticmethod
    def serves(model: object, dtype: torch.dtype | None, rows: int) -> bool:
        """Whether so many rows of this model can be stepped here, computing in `dtype` (None: that
        of the weights); where not, the model's own `step` does it."""
        if not isinstance(model, DecoderOnlyModel) or model.extended:
            return False
        if model.training or listening():
            return False
        device = next(model.parameters()).device
        if device.type != "cuda" or not (has_triton() and modern(device)) or rows > MOST:
            return False
        own = _dtype(model)  # sums are taken in fp32
        return own in (*HALF, torch.float32) and dtype in (None, own) and fits(model, rows)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        cache: Cache,
        keep: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Read the new tokens R 1: the logits of what follows, R V.

        `cache` has static states that have read a prompt, and a counter on the device; `keep`
        R room is False where nobody stands; `position_ids` R 1 are numbers of the tokens, if they
        are not their places. Nothing here waits for the device, so that it can be captured.
        """
        past = cache.length
        assert isinstance(past, Tensor), "places are counted on the device"
        x = self._read(tokens, cache, keep, position_ids)
        turn = self._turns(cache, position_ids)
        many = len(x) > FEW and not self.packed
        x = (self._many if many else self._few)(x, cache, past, keep, turn)
        cache.advance(1)
        return times(x, self.words, norm=None if many else self.final)

    def _read(
        self, tokens: Tensor, cache: Cache, keep: Tensor | None, position_ids: Tensor | None
    ) -> Tensor:
        """The tokens' vectors, R dim."""
        stack = self.model.decoder
        grid = cache.grid(len(tokens), 1, keep)
        inputs = {"input_ids": tokens}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        x: Tensor = stack.source(Side(grid, inputs, tokens, grid.total))
        return x[:, 0].contiguous()

    def _turns(self, cache: Cache, position_ids: Tensor | None) -> Turns | None:
        """The angles of all places that the cache has room for, as the model has them."""
        rotary, room = self.model.decoder.relative, cache.room
        if rotary is None:
            return None
        assert room is not None
        if room not in self.angles:  # kept: a captured graph knows where they lie
            where = torch.arange(room, device=self.ticks.device)
            turn: Turn = rotary(where, self.words.weight.dtype)
            self.angles[room] = Turns(turn.cos.contiguous(), turn.sin.contiguous())
        told = None if position_ids is None else position_ids.flatten()
        return self.angles[room]._replace(where=told)

    def _few(
        self, x: Tensor, cache: Cache, past: Tensor, keep: Tensor | None, turn: Turns | None
    ) -> Tensor:
        for layer, state in zip(self.layers, cache.layers, strict=True):
            own, feed = layer.norms
            parts = [times(x, part, norm=own) for part in layer.qkv]
            fused = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
            context = self._attend(fused, state.own, past, keep, turn)
            x = times(context, layer.out, more=x)
            inner = times(x, layer.up, norm=feed, gate=layer.gate, act=layer.block.feed.kind)
            x = times(inner, layer.down, more=x)
        return x

    def _many(
        self, x: Tensor, cache: Cache, past: Tensor, keep: Tensor | None, turn: Turns | None
    ) -> Tensor:
        h: Tensor | None = None  # not yet added
        with capturing():  # the kernels of training serve
            for layer, state in zip(self.layers, cache.layers, strict=True):
                block = layer.block
                x, y = _after(x, h, block.attention_norm)
                context = self._attend(block.attention.qkv(y), state.own, past, keep, turn)
                x, y = add_norm(x, block.attention.out(context), block.feed_norm)
                h = block.feed(y)
            final = self.model.decoder.final_norm
            assert h is not None
            return x + h if final is None else norm_of_sum(x, h, final)

    def _attend(
        self, fused: Tensor, state: Any, past: Tensor, keep: Tensor | None, turn: Turns | None
    ) -> Tensor:
        assert isinstance(state, Static)
        return one_query(fused, state.memory, past, keep, turn, self.heads, self.scale, self.ticks)


def fits(model: DecoderOnlyModel, rows: int) -> bool:
    """Whether the model is one whose steps are written down here, and its weights lie so that so
    many rows can be multiplied by them."""
    if not _plain(model.config):
        return False
    dtype, stack = _dtype(model), model.decoder
    layers: Any = stack.layers
    parts = [x for block in layers for x in (*_linears(block.attention), *_linears(block.feed))]
    found = [matrices_of(part, dtype) for part in parts]
    packed = [one for some in found if some is not None for one in some if one.bits is not None]
    if None in found or (packed and dtype not in HALF):
        return False
    served = all(kernel_of(x, min(rows, FEW_PACKED), dtype) for x in packed)
    words = model.vocab_head.table.weight
    return served and words.dtype == dtype and not (packed and rows > FEW_PACKED)


def _plain(tree: config.DecoderOnly) -> bool:
    """Whether the decoder is nothing but what is written down here."""
    stack, head = tree.decoder, tree.head
    turns = stack.steady and type(stack.relative) in (type(None), config.Rotary)
    bare = stack.flow is None and stack.between is None and type(stack.source) is config.Tokens
    words = type(head) is config.LMHead and head.transform is None and head.scale is None
    alike = len({(b.attention.heads, b.attention.groups) for b in stack.blocks}) == 1
    return all((turns, bare, words, alike, stack.causal)) and all(
        _plain_block(block, stack.dim) for block in stack.blocks
    )


def _plain_block(block: config.Block, dim: int) -> bool:
    own = type(block.attention.mixer) is config.Full and block.attention.size(dim) <= WIDEST
    joined = block.norm_at == "pre" and block.scale is None and block.cross is None
    return own and joined and block.feed.act in KNOWN


def _dtype(model: DecoderOnlyModel) -> torch.dtype:
    """What the model computes in if nobody says anything else: as its tokens' vectors are."""
    source: Any = model.decoder.source
    dtype: torch.dtype = source.embedding.weight.dtype
    return dtype


def _layer(block: Any, dtype: torch.dtype) -> Layer:
    own, feed = block.attention, block.feed
    norms = gain_of(block.attention_norm), gain_of(block.feed_norm)
    out, up, down = (_matrices(x, dtype)[0] for x in (own.out, feed.up, feed.down))
    gate = None if feed.gate is None else _matrices(feed.gate, dtype)[0]
    return Layer(block, norms, _matrices(own.qkv, dtype), out, up, gate, down)


def _matrices(linear: Any, dtype: torch.dtype) -> tuple[Matrix, ...]:
    matrices = matrices_of(linear, dtype)
    assert matrices is not None, "the model is not served"
    return matrices


def _words(model: DecoderOnlyModel, dtype: torch.dtype) -> Matrix:
    head: Any = model.vocab_head
    bias = head.addend(dtype)
    return Matrix(head.table.weight.detach(), None if bias is None else bias.detach())


def _linears(module: Any) -> list[Any]:
    names = ("qkv", "out", "up", "gate", "down")
    return [part for name in names if (part := getattr(module, name, None)) is not None]


def _all(layer: Layer) -> list[Matrix]:
    parts = (*layer.qkv, layer.out, layer.up, layer.gate, layer.down)
    return [x for x in parts if x is not None]


def _after(x: Tensor, h: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """x + h, and its norm."""
    return (x, norm_of_sum(x, None, norm)) if h is None else add_norm(x, h, norm)
