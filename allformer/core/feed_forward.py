"""The position-wise feed-forward layer: the same two matrices at every position."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.activation import ACT
from allformer.core.linear import Linear
from allformer.core.taps import tap


class Feed(nn.Module):
    """FFN(x) = act(x W₁ + b₁) W₂ + b₂, or gated: (act(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂."""

    def __init__(self, feed: config.Feed, dim: int, path: str) -> None:
        super().__init__()
        self.path = path
        self.up = Linear(dim, feed.width, bias=feed.bias)  # W₁
        self.gate = Linear(dim, feed.width, bias=feed.bias) if feed.gated else None  # W_g
        self.down = Linear(feed.width, dim, bias=feed.bias)  # W₂
        self.act = ACT[feed.act]
        self.dropout = feed.dropout

    def forward(self, x: Tensor) -> Tensor:
        h = tap(self, "up", self.up(x))
        h = self.act(h) if self.gate is None else self.act(tap(self, "gate", self.gate(x))) * h
        h = tap(self, "inner", h)
        h = F.dropout(h, self.dropout, self.training)
        return tap(self, "output", self.down(h))
