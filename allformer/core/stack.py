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
from allformer.core.bucket import BucketTable
from allformer.core.cache import Cache
from allformer.core.layout import Grid, Layout, Packed, RaggedLook, self_look
from allformer.core.linear import Linear
from allformer.core.masks import Look
from allformer.core.norm import make_norm
from allformer.core.position import count_ids, make_position
from allformer.core.rotary import RotaryPosition
from allformer.core.taps import listening, speaking_as, tap
from allformer.errors import ConfigError


class Embedding(nn.Module):
    """A table of token vectors, shared between encoder, decoder and head by sharing this module."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, dim))

    def forward(self, ids: Tensor, fixed: int | None = None) -> Tensor:
        """ids … → … dim; the row `fixed` gets no gradient."""
        return F.embedding(ids, self.weight, fixed)


class TokenStack(nn.Module):
    """An encoder or a decoder over tokens, as its `config.Stack` says."""

    def __init__(self, stack: config.Stack, path: str, embedding: Embedding | None = None) -> None:
        super().__init__()
        self.config, self.path = stack, path
        width = stack.width
        self.embedding = embedding or Embedding(stack.source.vocab, width)
        self.scale = math.sqrt(width) if stack.source.scale else 1.0
        self.fixed = stack.source.pad_id if stack.source.pad_fixed else None
        self.types = Embedding(stack.source.types, width) if stack.source.types else None
        self.position = None if stack.position is None else make_position(stack.position, width)
        self.first_row = 0  # of the table, in the numbers that a caller gives
        if isinstance(stack.position, config.Learned) and stack.position.count == "ids":
            self.first_row = stack.position.offset
        self.source_norm = None
        if stack.source_norm is not None:
            self.source_norm = make_norm(stack.source_norm, width)
        self.widen = None if stack.source.width is None else Linear(width, stack.dim)
        self.rotary, self.bucket = _relative(stack)
        self.order = stack.share or tuple(range(len(stack.blocks)))  # which layer runs when
        self.layers = nn.ModuleList(
            Layer(stack.blocks[self.order.index(i)], stack.dim, f"{path}.{i}")
            for i in range(len(set(self.order)))
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
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """ids B T → B T dim, or packed N → N dim."""
        looks = self._looks(layout, ids.device, kernel)
        x = self.embed(ids, layout, dtype, position_ids, token_type_ids)
        angles = None
        if self.rotary is not None:
            where = layout.positions(ids.device, "all") if position_ids is None else position_ids
            angles = self.rotary(where, x.dtype)
        for i, j in enumerate(self.order):
            here = None if cache is None else cache[i]
            args = (looks[self.config.blocks[i].attention.mixer], memory, memory_look, here, angles)
            if listening() and i != j:
                with speaking_as(self.layers[j], f"{self.path}.{i}"):  # type: ignore[arg-type]
                    x = self.layers[j](x, *args)
            else:
                x = self.layers[j](x, *args)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return F.dropout(tap(self, "output", x), self.config.final_dropout, self.training)

    def embed(
        self,
        ids: Tensor,
        layout: Layout,
        dtype: torch.dtype | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """E[ids] · √dim + PE[positions], then dropout (paper, section 3.4 and 3.5)."""
        x = tap(self, "tokens", self.embedding(ids, self.fixed) * self.scale)
        if self.types is not None:
            kinds = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
            x = x + tap(self, "types", self.types(kinds))
        elif token_type_ids is not None:
            raise ConfigError(
                f"token_type_ids={tuple(token_type_ids.shape)} given, but Tokens.types=0: this "
                f"model knows no segments; leave them out"
            )
        if self.position is not None:
            where, width = self._positions(ids, layout), layout.total
            if position_ids is not None:
                where = position_ids - self.first_row
                width = int(where.max()) + 1
            x = x + tap(self, "positions", self.position(where, width, x.dtype))
        if self.source_norm is not None:
            x = self.source_norm(x)
        x = tap(self, "embedded", x.to(dtype or x.dtype))  # from here on the compute dtype
        x = F.dropout(x, self.config.dropout, self.training)
        return x if self.widen is None else tap(self, "widened", self.widen(x))

    def numbered(self, layout: Packed, ids: Tensor) -> Packed:
        """The layout with the numbers that depend on the ids of the whole grid, B T."""
        if self.config.position is None or self.config.position.count != "ids":
            return layout
        return layout._replace(places=layout.to_packed(self._count_ids(ids)))

    def _positions(self, ids: Tensor, layout: Layout) -> Tensor:
        assert self.config.position is not None
        if self.config.position.count == "ids" and isinstance(layout, Grid):
            return self._count_ids(ids)
        return layout.positions(ids.device, self.config.position.count)

    def _count_ids(self, ids: Tensor) -> Tensor:
        assert self.config.source.pad_id is not None  # the config refuses it
        return count_ids(ids, self.config.source.pad_id)

    def _looks(
        self, layout: Layout, device: torch.device, kernel: str
    ) -> dict[config.Mixer, Look | RaggedLook]:
        """What each kind of layer may see; worked out once for all of them."""
        bias = None
        if self.bucket is not None:
            width = layout.width if isinstance(layout, Grid) else layout.total
            bias = tap(self, "relative", self.bucket(width, layout.total))
        mixers = {block.attention.mixer for block in self.config.blocks}
        return {
            mixer: self_look(layout, self.config.causal, device, kernel, mixer, bias)
            for mixer in mixers
        }


def _relative(stack: config.Stack) -> tuple[RotaryPosition | None, BucketTable | None]:
    """The module for the `relative` slot, by where it acts: on queries and keys, or on scores."""
    attention = stack.blocks[0].attention
    if isinstance(stack.relative, config.Rotary):
        return RotaryPosition(stack.relative, attention.size(stack.dim)), None
    if isinstance(stack.relative, config.BucketBias):
        return None, BucketTable(stack.relative, attention.heads, both_sides=not stack.causal)
    return None, None
