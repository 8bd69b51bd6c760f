"""Multi-head attention: project, split into heads, attend, merge, project.

    MultiHead(Q, K, V) = Concat(head₁, …, head_H) W_O,  head_i = Attention(Q W_Q, K W_K, V W_V)

Legend: B batch, T queries, S keys, N packed tokens, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.attend import attend, attention_scores, attention_weights, mix
from allformer.core.cache import LayerCache
from allformer.core.layout import Packed, RaggedLook
from allformer.core.linear import Fused, Linear
from allformer.core.masks import Look
from allformer.core.rotary import Turn, turn
from allformer.core.taps import listening, tap
from allformer.errors import ConfigError


class MultiHead(nn.Module):
    """Self-attention (one fused q, k, v product) or, with `cross`, q and a fused k, v."""

    def __init__(self, attention: config.Attention, dim: int, path: str, cross: bool = False):
        super().__init__()
        size = attention.size(dim)
        q, kv = attention.heads * size, attention.groups * size
        self.path = path
        self.heads, self.groups, self.size = attention.heads, attention.groups, size
        self.scale = size**-0.5 if attention.scale is None else attention.scale  # 1/√D
        self.dropout = attention.dropout
        self.cross = cross
        bias = attention.bias
        if not isinstance(bias, bool):
            raise ConfigError(f"Attention.bias={bias!r} cannot be built yet; try True or False")
        if cross:
            self.query = Fused(dim, bias, q=q)
            self.memory = Fused(dim, bias, k=kv, v=kv)
        else:
            self.qkv = Fused(dim, bias, q=q, k=kv, v=kv)
        self.out = Linear(q, dim, bias=bias)  # W_O

    def forward(
        self,
        x: Tensor,
        look: Look | RaggedLook,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
        angles: Turn | None = None,
    ) -> Tensor:
        """x B T dim (or N dim) looks at itself, or at `memory` B S dim → the shape of x.

        With `angles`, queries and keys are turned by their positions before they meet.
        """
        here = there = None
        if isinstance(look, RaggedLook) and look.dense is not None:
            # No kernel takes ragged rows here: attention alone runs on the grids.
            here, there, look = look.query, look.key, look.dense
        packed = isinstance(look, RaggedLook)
        if self.cross:
            q = self._split(_on_grid(self.query(x), here), self.heads, packed)
            if cache is not None and cache.cross is not None:
                k, v = cache.cross
            else:
                assert memory is not None, "cross-attention needs the encoder's output"
                parts = self.memory.cut(_on_grid(self.memory(memory), there))
                k, v = (self._split(y, self.groups, packed) for y in parts)  # B G S D
                if cache is not None:
                    cache.cross = (k, v)
        else:
            fused = self.qkv(x)
            if angles is not None:
                fused = self._turn(fused, angles)
            parts = self.qkv.cut(_on_grid(fused, here))
            q = self._split(parts[0], self.heads, packed)  # B H T D
            k, v = (self._split(y, self.groups, packed) for y in parts[1:])  # B G T D
            if cache is not None:
                k, v = cache.append(k, v)
        q, k, v = tap(self, "q", q), tap(self, "k", k), tap(self, "v", v)
        context = self._merge(self._attend(q, k, v, look), packed)  # B T H·D
        if here is not None:
            context = here.to_packed(context)
        return tap(self, "output", self.out(tap(self, "context", context)))

    def _turn(self, fused: Tensor, angles: Turn) -> Tensor:
        """Turn the query and key heads of the fused product, … (H+2G)·D; values stay."""
        count = self.heads + self.groups
        heads = fused.view(*fused.shape[:-1], -1, self.size)  # … H+2G D
        turned = turn(heads[..., :count, :], angles)
        return torch.cat([turned, heads[..., count:, :]], dim=-2).flatten(-2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, look: Look | RaggedLook) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if listening() and isinstance(look, Look):
            # Shown beside the run, not instead of it: the fast kernel still makes the output,
            # unless the listener puts other scores or weights there.
            scores = attention_scores(q, k, scale=self.scale, bias=look.bias)
            patched_scores = tap(self, "scores", scores)
            weights = attention_weights(patched_scores, look)
            patched = tap(self, "weights", weights)
            if patched_scores is not scores or patched is not weights:
                return mix(patched, v)
        return attend(q, k, v, look, scale=self.scale, dropout=dropout)

    def _split(self, x: Tensor, heads: int, packed: bool) -> Tensor:
        x = x.view(*x.shape[:-1], heads, self.size)
        return x if packed else x.transpose(1, 2)  # N H D or B H T D

    @staticmethod
    def _merge(x: Tensor, packed: bool) -> Tensor:
        # transpose back *before* flattening: B H T D → B T H D → B T H·D
        return x.flatten(-2) if packed else x.transpose(1, 2).flatten(-2)


def _on_grid(x: Tensor, layout: Packed | None) -> Tensor:
    return x if layout is None else layout.to_grid(x)
