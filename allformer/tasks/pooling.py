"""From the states of a text's tokens to one vector.

Legend: B texts, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.activation import ACT
from allformer.core.pooling import POOLS
from allformer.core.precision import widen
from allformer.errors import ConfigError


@dataclass(frozen=True)
class Pooling:
    """One or several ways to pool, side by side; `prompt=False` leaves the prompt's tokens out."""

    modes: tuple[str, ...] = ("mean",)
    prompt: bool = True

    def __post_init__(self) -> None:
        unknown = [mode for mode in self.modes if mode not in POOLS]
        if unknown or not self.modes:
            raise ConfigError(f"pooling={self.modes!r} is not known; try {', '.join(POOLS)}")

    def pool(self, states: Tensor, mask: Tensor, prompt: int = 0) -> Tensor:
        """B T D, B T → B (D · modes); `prompt` is how many tokens the prompt has."""
        x, keep = widen(states), mask.bool()
        places = keep.cumsum(1)
        if not self.prompt:
            keep = keep & (places > prompt)
        return torch.cat([POOLS[mode](x, keep, places) for mode in self.modes], dim=-1)


@dataclass(frozen=True, eq=False)
class Dense:
    """act(x W + b) after the pooling."""

    weight: Tensor
    bias: Tensor | None
    act: str

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x)
        return ACT[self.act](F.linear(x, self.weight.to(x), bias))


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """LayerNorm after the pooling."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight.to(x), self.bias.to(x))


@dataclass(frozen=True)
class Normalise:
    """To length 1."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


Step = Pooling | Dense | LayerNorm | Normalise
