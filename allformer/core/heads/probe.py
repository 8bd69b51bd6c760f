"""A learned query that looks at all states: attention as a way to pool.

Legend: B batch, T length, H heads, dim model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.attend import attention_scores, mix
from allformer.core.feed_forward import Feed
from allformer.core.linear import Fused, Linear
from allformer.core.norm import make_norm
from allformer.core.taps import tap


class Probe(nn.Module):
    """c + FFN(norm(c)), where c is what the query finds: B T dim → B dim."""

    def __init__(self, probe: config.Probe, dim: int, path: str) -> None:
        super().__init__()
        self.path, self.heads = path, probe.heads
        self.query = nn.Parameter(torch.empty(1, dim))
        self.qkv = Fused(dim, True, q=dim, k=dim, v=dim)
        self.out = Linear(dim, dim)
        self.norm = make_norm(probe.norm, dim)
        self.feed = Feed(probe.feed, dim, f"{path}.feed")

    def reset_parameters(self) -> None:
        """Glorot-uniform, as published."""
        nn.init.xavier_uniform_(self.query)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """`keep` (B T) is False at padding."""
        (q,) = self.qkv.only(self.query.to(x.dtype), "q")  # 1 dim
        k, v = self.qkv.only(x, "k", "v")
        q, k, v = (self._split(part) for part in (q.expand(len(x), 1, -1), k, v))  # B H … D
        scores = attention_scores(q, k, scale=q.shape[-1] ** -0.5)  # B H 1 T
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], float("-inf"))
        weights = tap(self, "weights", scores.softmax(-1))
        c = self.out(mix(weights, v).transpose(1, 2).flatten(2)[:, 0])  # B dim
        return tap(self, "output", c + self.feed(self.norm(c)))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
