"""T5's relative positions: the distance from query to key chooses a learned bias for each head.

Legend: H heads, T queries, S keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from allformer import config


def bucket(distance: Tensor, buckets: int, max_distance: int, both_sides: bool) -> Tensor:
    """The bucket of each distance j − i (key minus query).

    Half of a side's buckets are single steps; the rest grow with the logarithm up to
    `max_distance`, beyond which all distances share the last one. With `both_sides`, keys after
    the query have the upper half of the buckets; without, they count as distance 0.
    """
    offset = torch.zeros_like(distance)
    if both_sides:
        buckets //= 2
        offset = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp_min(0)
    exact = buckets // 2
    # in fp32 as T5 was trained: at the borders of the buckets rounding decides
    far = torch.log(distance.float() / exact) / math.log(max_distance / exact) * (buckets - exact)
    far = (exact + far.clamp_min(0).long()).clamp_max(buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


class BucketTable(nn.Module):
    """bias[h, i, j] = weight[bucket(j − i), h], shared by all layers of a stack."""

    def __init__(self, relative: config.BucketBias, heads: int, both_sides: bool) -> None:
        super().__init__()
        self.config, self.both_sides = relative, both_sides
        self.weight = nn.Parameter(torch.empty(relative.buckets, heads))

    def forward(self, targets: int, sources: int) -> Tensor:
        """1 H T S; the T queries are the last of the S positions."""
        device = self.weight.device
        rows = torch.arange(sources - targets, sources, device=device)[:, None]
        distance = torch.arange(sources, device=device)[None, :] - rows
        c = self.config
        cells = bucket(distance, c.buckets, c.max_distance, self.both_sides)  # T S
        return self.weight[cells].permute(2, 0, 1)[None]  # 1 H T S
