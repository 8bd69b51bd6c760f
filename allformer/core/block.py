"""One layer of a stack: attention and feed-forward, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.attention import MultiHead
from allformer.core.cache import LayerCache
from allformer.core.feed_forward import FeedForward
from allformer.core.layout import RaggedLook
from allformer.core.masks import Look
from allformer.core.norm import make_norm
from allformer.core.rotary import Turn
from allformer.core.taps import tap


class Layer(nn.Module):
    """Post-norm: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x)))."""

    def __init__(self, block: config.Block, dim: int, path: str) -> None:
        super().__init__()
        self.path = path
        self.pre = block.norm_at == "pre"
        self.dropout = block.dropout
        self.attention = MultiHead(block.attention, dim, f"{path}.attention")
        self.attention_norm = make_norm(block.norm, dim)
        if block.cross is not None:
            self.cross = MultiHead(block.cross, dim, f"{path}.cross", cross=True)
            self.cross_norm = make_norm(block.norm, dim)
        self.has_cross = block.cross is not None
        self.feed = FeedForward(block.feed, dim, f"{path}.feed")
        self.feed_norm = make_norm(block.norm, dim)

    def forward(
        self,
        x: Tensor,
        look: Look | RaggedLook,
        memory: Tensor | None = None,
        memory_look: Look | RaggedLook | None = None,
        cache: LayerCache | None = None,
        angles: Turn | None = None,
    ) -> Tensor:
        """x … dim → the same shape, one layer further."""
        x = self._residual(
            x,
            lambda h: self.attention(h, look, cache=cache, angles=angles),
            self.attention_norm,
            "attention",
        )
        if self.has_cross:
            assert memory_look is not None
            x = self._residual(
                x, lambda h: self.cross(h, memory_look, memory, cache), self.cross_norm, "cross"
            )
        return self._residual(x, self.feed, self.feed_norm, "feed")

    def _residual(
        self, x: Tensor, f: Callable[[Tensor], Tensor], norm: nn.Module, step: str
    ) -> Tensor:
        if self.pre:
            h = f(tap(self, f"{step}_norm", norm(x)))
            return tap(self, f"{step}_added", x + F.dropout(h, self.dropout, self.training))
        h = tap(self, f"{step}_added", x + F.dropout(f(x), self.dropout, self.training))
        return tap(self, f"{step}_norm", norm(h))
