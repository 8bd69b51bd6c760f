"""One layer's parts, looked up once, and what it does with the new tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.lean.cache import Columns
from allformer.core.lean.native import LANES, ROWS, Few, Heads, in_order
from allformer.core.lean.pages import Tokens, look_across, look_back
from allformer.core.lean.places import turn
from allformer.core.lean.products import Product, onto
from allformer.core.norm import LayerNorm
from allformer.core.states import LayerState
from allformer.core.states.pages import Pages

Make = Callable[..., Product]


class Norm:
    """A LayerNorm's numbers."""

    def __init__(self, norm: LayerNorm) -> None:
        self.weight, self.bias, self.eps = norm.weight.detach(), norm.bias.detach(), norm.eps
        self.shape = self.weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class Look(NamedTuple):
    """What the layers of one call have in common: `bias` (A·G J·M C) is added to the scores of one
    new token of each row; of several, `mask` (A 1 N C) says who may look, or they are `causal`."""

    bias: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    turns: tuple[Tensor, ...] | None = None
    across: Tensor | None = None  # A·G 1 S
    tokens: Tokens | None = None  # what each sees lies in pages


class Layer:
    """`Layer(block, make, dtype)(x, state, look)`: A M dim → A M dim."""

    def __init__(self, block: Any, make: Make, dtype: torch.dtype) -> None:
        own, feed = block.attention, block.feed
        self.pre = block.pre
        self.norms = [lean_norm(block.attention_norm, dtype), lean_norm(block.feed_norm, dtype)]
        self.own, self.qkv, self.out = heads_of(own), make(own.qkv, fine=True), make(own.out)
        self.cross: Heads | None = None
        if block.has_cross:
            self.norms.insert(1, lean_norm(block.cross_norm, dtype))
            self.cross = heads_of(block.cross)
            self.query, self.across = make(block.cross.query), make(block.cross.out)
            self.memory = make(block.cross.memory)
        every = (self.own,) if self.cross is None else (self.own, self.cross)
        fits = dtype == torch.float32 and all(how.size % LANES == 0 for how in every)
        self.few: Few | None = getattr(self.qkv, "few", None) if fits else None
        self.up, self.down, self.act = make(feed.up), make(feed.down, fine=True), feed.act
        self.gate = None if feed.gate is None else make(feed.gate)

    def __call__(self, x: Tensor, state: LayerState, look: Look) -> Tensor:
        own, *cross, feed = self.norms
        x = self._join(x, own, partial(self._within, state=state, look=look), self.out)
        if cross:
            x = self._join(x, cross[0], partial(self._across, state=state, look=look), self.across)
        return self._join(x, feed, self._inner, self.down)

    def _join(self, x: Tensor, norm: Product, work: Product, out: Product) -> Tensor:
        """A sub-layer, whose last product is `out`, with its residual and its norm."""
        return onto(out, work(norm(x)), x) if self.pre else norm(onto(out, work(x), x))

    def _inner(self, x: Tensor) -> Tensor:
        h = self.up(x)
        inner: Tensor = self.act(h) if self.gate is None else self.act(self.gate(x)) * h
        return inner

    def _within(self, x: Tensor, state: LayerState, look: Look) -> Tensor:
        """Self-attention, A M dim → A M H·D."""
        sources, new, _ = x.shape
        h, g, size, scale = self.own
        parts = self.qkv(x).view(sources, new, -1, size)  # A M H+2G D
        if look.turns is None:
            q, k, v = parts.split_with_sizes([h, g, g], 2)
        else:
            turned = turn(parts[:, :, : h + g], look.turns)
            (q, k), v = turned.split_with_sizes([h, g], 2), parts[:, :, h + g :]
        own = state.own
        if isinstance(own, Pages):
            assert look.tokens is not None
            seen = look_back(look.tokens, own, self.few, q[:, 0], k[:, 0], v[:, 0], self.own)
            return seen[:, None]
        assert isinstance(own, Columns)
        if self.few is not None and not (look.causal or look.mask is not None):
            past, keys, values = own.room(k)
            self.few.keep(k, v, keys, values, past)
            return self.few.look(q, keys[:, :, : past + new], values, look.bias, self.own)
        k, v = k.transpose(1, 2), v.transpose(1, 2)  # A G M D
        keys, values = own.add(k, v)
        if look.causal or look.mask is not None:
            if look.mask is not None:
                k, v = keys, values
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, look.mask, is_causal=look.causal, scale=scale,
                enable_gqa=h != g,
            )  # fmt: skip
            return out.transpose(1, 2).reshape(sources, new, h * size)
        return attend(q, keys, values, look.bias, self.own)

    def see(self, memory: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """The encoder's keys and values, A G S D; `keep` A S.

        Where torch multiplies them, the keys lie with their last two axes exchanged: a step's
        product with them reads memory in order then.
        """
        assert self.cross is not None
        _, g, size, _ = self.cross
        both = self.memory(memory).view(*memory.shape[:2], 2, g, size).permute(2, 0, 3, 1, 4)
        keys, values = both.unbind(0)  # A G S D
        if keep is not None:  # a source of padding alone gives zeros
            values = values * keep.any(1)[:, None, None, None]
        if self.few is None:
            keys = keys.transpose(2, 3).contiguous().transpose(2, 3)
        return keys if self.few is None else keys.contiguous(), values.contiguous()

    def _across(self, x: Tensor, state: LayerState, look: Look) -> Tensor:
        """Cross-attention, A M dim → A M H·D."""
        assert self.cross is not None
        q = self.query(x).view(*x.shape[:2], *self.cross[0:3:2])  # A M H D
        if isinstance(state.own, Pages):
            assert look.tokens is not None
            return look_across(look.tokens, state.own, self.few, q[:, 0], self.cross)[:, None]
        assert state.cross is not None, "memory is given with the first tokens"
        if self.few is not None and x.shape[1] <= ROWS:
            keys, values = (in_order(part) for part in state.cross)
            return self.few.look(q, keys, values, look.across, self.cross)
        return attend(q, *state.cross, look.across, self.cross)


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, how: Heads) -> Tensor:
    """softmax(q·k) v as the formula stands: q A M H D, keys and values A G C D → A M H·D.

    Heads that share keys ask side by side, as more queries.
    """
    sources, new, h, size = q.shape
    g, each = how.groups, h // how.groups
    q = q.reshape(sources, new, g, each, size).permute(0, 2, 3, 1, 4)
    q = q.reshape(sources * g, each * new, size)
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # A·G C D
    if q.dtype == torch.bfloat16:  # too narrow for scores: torch's kernel has them in fp32
        out = F.scaled_dot_product_attention(q, keys, values, bias, scale=how.scale)
    elif bias is None:
        out = torch.bmm(torch.bmm(q * how.scale, keys.transpose(1, 2)).softmax(-1), values)
    else:
        scores = torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=how.scale)
        out = torch.bmm(scores.softmax(-1), values)
    out = out.view(sources, g, each, new, size).permute(0, 3, 1, 2, 4)
    return out.reshape(sources, new, h * size)


def heads_of(attention: Any) -> Heads:
    mixer = attention.mixer
    return Heads(mixer.heads, mixer.groups, mixer.size, mixer.scale)


def lean_norm(norm: Any, dtype: torch.dtype) -> Product:
    """The numbers of a LayerNorm in the dtype that is computed in; others are their own."""
    if isinstance(norm, LayerNorm) and norm.weight.dtype == dtype:
        return Norm(norm)
    own: Product = norm
    return own
