"""A stack: embed the tokens, add positions, run the layers.

Legend: B batch, T length, N packed tokens, dim model width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.block import Layer
from allformer.core.cache import Cache
from allformer.core.layout import Layout, RaggedLook, self_look
from allformer.core.masks import Look
from allformer.core.norm import make_norm
from allformer.core.position import make_position
from allformer.core.taps import tap


class Embedding(nn.Module):
    """A table of token vectors, shared between encoder, decoder and head by sharing this module."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, dim))

    def forward(self, ids: Tensor) -> Tensor:
        """ids … → … dim"""
        return F.embedding(ids, self.weight)


class TokenStack(nn.Module):
    """An encoder or a decoder over tokens, as its `config.Stack` says."""

    def __init__(self, stack: config.Stack, path: str, embedding: Embedding | None = None) -> None:
        super().__init__()
        self.config, self.path = stack, path
        self.embedding = embedding or Embedding(stack.source.vocab, stack.dim)
        self.scale = math.sqrt(stack.dim) if stack.source.scale else 1.0
        self.position = None if stack.position is None else make_position(stack.position, stack.dim)
        self.source_norm = None
        if stack.source_norm is not None:
            self.source_norm = make_norm(stack.source_norm, stack.dim)
        self.layers = nn.ModuleList(
            Layer(block, stack.dim, f"{path}.{i}") for i, block in enumerate(stack.blocks)
        )
        self.final_norm = None
        if stack.final_norm is not None:
            self.final_norm = make_norm(stack.final_norm, stack.dim)

    def forward(
        self,
        ids: Tensor,
        layout: Layout,
        *,
        memory: Tensor | None = None,
        memory_look: Look | RaggedLook | None = None,
        cache: Cache | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """ids B T → B T dim, or packed N → N dim."""
        look = self_look(layout, self.config.causal, ids.device, kernel)
        x = self.embed(ids, layout, dtype, position_ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, look, memory, memory_look, None if cache is None else cache[i])
        if self.final_norm is not None:
            x = self.final_norm(x)
        return tap(self, "output", x)

    def embed(
        self,
        ids: Tensor,
        layout: Layout,
        dtype: torch.dtype | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """E[ids] · √dim + PE[positions], then dropout (paper, section 3.4 and 3.5)."""
        x = tap(self, "tokens", self.embedding(ids) * self.scale)
        if self.position is not None:
            where, width = layout.positions(ids.device), layout.total
            if position_ids is not None:
                where, width = position_ids, int(position_ids.max()) + 1
            x = x + tap(self, "positions", self.position(where, width, x.dtype))
        if self.source_norm is not None:
            x = self.source_norm(x)
        x = tap(self, "embedded", x.to(dtype or x.dtype))  # from here on the compute dtype
        return F.dropout(x, self.config.dropout, self.training)
