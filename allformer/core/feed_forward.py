"""The position-wise feed-forward layer: the same two matrices at every position."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.linear import Linear
from allformer.core.taps import tap

# Keys are config.ACTIVATIONS; gelu_tanh is GPT-2's approximation, not the exact Gaussian form.
ACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(0, x)
    "gelu": F.gelu,  # x Φ(x)
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),  # OpenAI's first approximation
    "silu": F.silu,  # x σ(x)
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "identity": lambda x: x,
}


class FeedForward(nn.Module):
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
