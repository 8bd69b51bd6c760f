"""The position-wise feed-forward layer: the same two matrices at every position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.activation import ACT
from allformer.core.dropout import drop
from allformer.core.fused.feed import feed_inner, feed_serves, feed_tail
from allformer.core.fused.linear import linear
from allformer.core.fused.norm import NOTHING, Thinning
from allformer.core.fused.random import draw
from allformer.core.linear import Linear
from allformer.core.recompute import recomputed
from allformer.core.taps import listening, tap


class Feed(nn.Module):
    """FFN(x) = act(x W₁ + b₁) W₂ + b₂, or gated: (act(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂."""

    def __init__(self, feed: config.Feed, dim: int, path: str) -> None:
        super().__init__()
        self.path = path
        self.up = Linear(dim, feed.width, bias=feed.bias)  # W₁
        self.gate = Linear(dim, feed.width, bias=feed.bias) if feed.gated else None  # W_g
        self.down = Linear(feed.width, dim, bias=feed.bias)  # W₂
        self.act = ACT[feed.act]
        self.kind = feed.act
        self.dropout = feed.dropout
        self.chunk = feed.chunk

    def forward(self, x: Tensor, seed: Tensor | None = None) -> Tensor:
        """… dim → … dim; `seed` chooses the mask where a fused kernel drops out."""
        if not self.chunk or x.shape[-2] <= self.chunk or listening():
            return self._all(x, seed)
        drops = self.dropout > 0 and seed is None
        random = self.training and (drops or any(_draws(layer) for layer in self._layers))
        parts = [
            recomputed(
                "layers", random, self._all, part, None if seed is None else seed + (i << 32)
            )
            for i, part in enumerate(torch.split(x, self.chunk, dim=-2))
        ]  # the upper half of a seed tells the masks of chunks apart
        return torch.cat(parts, dim=-2)

    def _all(self, x: Tensor, seed: Tensor | None = None) -> Tensor:
        if self._fuses(x):
            return self._fused(x, seed)
        h = tap(self, "up", self.up(x))
        gate = None if self.gate is None else tap(self, "gate", self.gate(x))
        if self._tuned and feed_serves(h, self.kind, gate):
            inner: Tensor = self.down(feed_inner(h, gate, self.kind, self._thinning(x, seed)))
            return inner
        h = self.act(h) if gate is None else self.act(gate) * h
        h = tap(self, "inner", h)
        h = drop(h, self.dropout, self.training)
        return tap(self, "output", self.down(h))

    @property
    def _layers(self) -> list[Any]:
        return [layer for layer in (self.up, self.gate, self.down) if layer is not None]

    @property
    def _tuned(self) -> bool:
        """Whether a layer is frozen or has an adapter: then its product is its own."""
        plain = (isinstance(layer, Linear) and layer.delta is None for layer in self._layers)
        return not all(plain) or not self.down.weight.requires_grad

    def _fuses(self, x: Tensor) -> bool:
        """Whether one kernel does all between the products; changed or replaced layers do not."""
        if not feed_serves(x, self.kind):
            return False
        layers = self._layers
        kinds = (torch.float32,) if torch.is_grad_enabled() else (torch.float32, x.dtype)
        plain = all(
            type(layer) is Linear and layer.delta is None and layer.weight.dtype in kinds
            for layer in layers
        )
        return plain and feed_serves(x, self.kind, *(layer.weight for layer in layers))

    def _fused(self, x: Tensor, seed: Tensor | None) -> Tensor:
        up = linear(x, self.up.weight, None)
        gate = None if self.gate is None else linear(x, self.gate.weight, None)
        biases = self.up.bias, None if self.gate is None else self.gate.bias
        return feed_tail(
            up, gate, biases, self.kind, self.down.weight, self.down.bias, self._thinning(x, seed)
        )

    def _thinning(self, x: Tensor, seed: Tensor | None) -> Thinning:
        """The dropout of what stands between the products, inside a kernel."""
        if not self.training or not self.dropout:
            return NOTHING
        return Thinning(self.dropout, draw(1, x.device)[0] if seed is None else seed, 4)


def _draws(layer: Any) -> bool:
    """Whether what is beside a layer drops out."""
    return bool(getattr(layer.delta, "draws", False))
