"""T5's relative positions: the distance from query to key chooses a learned bias for each head.

Legend: H heads, T queries, S keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.places import Places
from allformer.core.registry import implements
from allformer.core.relatives.relative import Relation, Relative
from allformer.core.taps import tap


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


@implements(config.BucketBias)
class BucketBias(Relative):
    """bias[h, i, j] = weight[bucket(j − i), h], shared by all layers of a stack."""

    def __init__(self, relative: config.BucketBias, stack: config.Stack, path: str) -> None:
        super().__init__(relative, stack, path)
        self.both_sides = not stack.causal
        heads = stack.blocks[0].attention.heads
        self.weight = nn.Parameter(torch.empty(relative.buckets, heads))

    def reset_parameters(self) -> None:
        """As every table starts."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Buckets:
        return Buckets(self)


class Buckets(Relation):
    """The biases of the distances between places."""

    adds = True

    def __init__(self, table: BucketBias) -> None:
        self.table = table

    def bias(self, places: Places) -> Tensor:
        c, both = self.table.config, self.table.both_sides
        cells = bucket(places.distance, c.buckets, c.max_distance, both)  # R T S
        return tap(self.table, "relative", self.table.weight[cells].permute(0, 3, 1, 2))  # R H T S
