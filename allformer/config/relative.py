"""Positions inside the attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Heads, Part, plain_line
from allformer.config.position import Places


class Relative(Places, slot=True):
    """Turns queries and keys, or adds to scores; one with tensors must say `parameters`, and those
    that each layer has of its own in `of_layer`."""

    memory: int = 0  # tokens of earlier segments that are looked at
    blank: bool = False  # whether they are zeros at first, and looked at

    def fits(self, stack: Any) -> None:
        """Refuse a stack that it cannot serve."""

    adds: ClassVar[bool] = False  # to scores, which not every mixer has

    def parameters(self, attention: Heads, dim: int) -> int:
        """Of its own, once for all layers."""
        return 0

    def of_layer(self, attention: Heads, dim: int) -> int:
        """Parameters that a layer has of its own."""
        return 0

    def formula(self, attention: Heads, dim: int) -> str:
        """Of a layer's own parameters."""
        return f"{self.of_layer(attention, dim):,}"

    def flops(self, attention: Heads, dim: int, keys: float) -> int:
        """Of one token in one layer whose query meets so many keys, where that is much."""
        return 0

    def line(self, name: str, attention: Heads, dim: int) -> Part:
        """Its line in the count."""
        return plain_line(name, self.parameters(attention, dim))


@dataclass(frozen=True)
class BucketBias(Relative):
    """T5's relative positions: a learned bias for each head and bucket of distances.

    Half of the buckets count single steps, the others widen up to `max_distance`. A causal stack
    looks back only and has all the buckets for that side. All layers share one table.
    """

    adds: ClassVar[bool] = True
    buckets: Positive = 32
    max_distance: Positive = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets < 4 or self.buckets % 2:
            refuse(self, "buckets", "must be even and at least 4", "T5 has 32")
        if self.max_distance <= self.buckets // 2:
            must = f"must be greater than half of buckets={self.buckets}"
            refuse(self, "max_distance", must, "T5 has 128")

    def parameters(self, attention: Heads, dim: int) -> int:
        return self.buckets * attention.heads

    def line(self, name: str, attention: Heads, dim: int) -> Part:
        formula = f"buckets·H = {self.buckets}·{attention.heads}"
        return Part(name, formula, self.parameters(attention, dim))
