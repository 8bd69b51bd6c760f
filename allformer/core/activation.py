"""Activations by name; the names are `config.ACTIVATIONS`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def quick_gelu(x: Tensor) -> Tensor:
    """x σ(1.702 x): OpenAI's first approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GPT-2's approximation of GELU, not the exact form."""
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """max(0, x)²"""
    return F.relu(x).square()


def identity(x: Tensor) -> Tensor:
    """x"""
    return x


ACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(0, x)
    "gelu": F.gelu,  # x Φ(x)
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": F.silu,  # x σ(x)
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
    "relu2": relu2,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "identity": identity,
}
