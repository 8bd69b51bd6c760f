"""The position-wise feed-forward layer: the same two matrices at every position."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.linear import Linear
from allformer.core.taps import tap


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _identity(x: Tensor) -> Tensor:
    return x


# Keys are config.ACTIVATIONS; gelu_tanh is GPT-2's approximation, not the exact Gaussian form.
# Functions with names, so that a model can be pickled.
ACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(0, x)
    "gelu": F.gelu,  # x Φ(x)
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,  # OpenAI's first approximation
    "silu": F.silu,  # x σ(x)
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
    "relu2": _relu2,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "identity": _identity,
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
