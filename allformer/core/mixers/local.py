"""Attention within chunks of neighbours (Reformer's local layers).

Legend: B rows, H heads, T length, C chunks, c length of a chunk, w keys of a chunk, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from allformer import config
from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.chunks import HIDDEN, Ring, past_of, ring, weigh
from allformer.core.dropout import drop
from allformer.core.kernels.rings import attend_ring, ring_blocks, serves
from allformer.core.layout import Layout
from allformer.core.look import Look, blind_rows, make_look
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.places import Places
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra
from allformer.core.states import Growing, State
from allformer.core.states import Ring as LastTokens
from allformer.core.taps import tap


class Plan(NamedTuple):
    """Rows in chunks (`ring`), or few new tokens behind what a state has (`look`, by `places`).
    `blocks`: a kernel serves for whole rows, see `kernels.rings`."""

    layout: Layout
    ring: Ring
    places: Places | None = None
    look: Look | None = None
    blocks: BlockMask | None = None


@implements(config.Local)
class Local(Mixer):
    """softmax over the chunks around a query, the same for all queries of a chunk."""

    def new_state(self, causal: bool) -> State:
        """The last chunks are enough: this one, and those before it."""
        c = self.config
        return LastTokens((1 + c.before) * c.chunk - 1) if causal else Growing()

    def plan(self, scene: Scene) -> Plan:
        c = self.config
        own = ring(scene, c.chunk, c.before, c.after)
        past = past_of(scene.query)
        places = None if scene.state is None else scene.places()
        if isinstance(past, int) and not past:
            drops, blocks = self.training and self.dropout > 0, None
            if own.length > c.chunk and serves(scene, own, own.length, self.size, drops):
                blocks = ring_blocks(own, own.length, scene.device)
            return Plan(scene.query, own, places, blocks=blocks)
        assert places is not None
        mask = self._mask(places, scene.causal)
        return Plan(scene.query, own, places, make_look(mask, blind=blind_rows(mask)))

    def _mask(self, places: Places, causal: bool) -> Tensor:
        """The chunks around each query, B 1 T S; True = may look."""
        c = self.config
        query, key = places.query[:, :, None], places.key[:, None, :]
        near = key // c.chunk - query // c.chunk
        mask: Tensor = (near >= -c.before) & (near <= c.after)
        if causal:
            mask = mask & (key <= query)
        if places.real is not None:
            mask = mask & places.real[:, None, :]
        return mask[:, None]

    def put(self, x: Tensor, plan: Plan, key: bool) -> Tensor:
        return plan.layout.to_grid(x)

    def forward(
        self, parts: dict[str, Tensor], plan: Plan, state: State | None, extra: Extra | None
    ) -> Tensor:
        q, k, v = (self._split(parts[name]) for name in "qkv")
        if state is not None:
            k, v = state.update(k, v, plan.places)
        q, k, v = tap(self, "q", q), tap(self, "k", k), tap(self, "v", v)
        if plan.look is not None:
            scores = attention_scores(q, k, scale=self.scale)
            context = mix(attention_weights(scores, plan.look), v)
        else:
            context = self._chunked(q, k, v, plan)[:, :, : q.shape[2]]
        return plan.layout.lay(context.transpose(1, 2).flatten(-2))  # B T H·D

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)  # B H T D

    def _chunked(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        own = plan.ring
        if self.groups != self.heads:
            k, v = (x.repeat_interleave(self.heads // self.groups, 1) for x in (k, v))
        q, k, v = (own.fill(x) for x in (q, k, v))  # B H length D
        if plan.blocks is not None:
            at = torch.arange(own.length, device=q.device)
            return attend_ring(q, k, v, at, own, plan.blocks, itself=True, scale=self.scale)[0]
        k = k * self.scale
        q, k, v = own.cut(q), own.cut(k), own.cut(v)  # B H C c D
        k, v = own.look(k), own.look(v)  # B H C w D
        scores = q @ k.transpose(-1, -2)  # B H C c w
        places = own.cut(torch.arange(own.length, device=q.device)[None, None])
        hidden = own.hidden(places, own.look(places))
        if hidden is not None:
            scores = scores.masked_fill_(hidden, HIDDEN.get(scores.dtype, -1e9))
        weights, _ = weigh(scores)
        weights = drop(tap(self, "chunk_weights", weights), self.dropout, self.training)
        return (weights @ v).flatten(2, 3)  # B H length D
