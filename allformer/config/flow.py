"""Flows: how the sub-layers of a stack are joined, where that is not one sum after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allformer.config.base import Config
from allformer.config.check import refuse
from allformer.config.counting import Layers


class Flow(Config, slot=True):
    """What carries the states through the layers of a stack and hands each sub-layer its input."""

    def width(self, dim: int) -> int:
        """Of the states that the stack gives, for layers of width `dim`."""
        return dim

    def kept(self, layers: Sequence[int], dim: int) -> int:
        """Numbers of one token that the backward pass needs, where the layers' own are `layers`."""
        return dim + sum(layers)

    def check(self, stack: Layers) -> None:
        """Refuse what makes no sense around it; asked when a stack is made."""


@dataclass(frozen=True)
class Reversible(Flow):
    """Two streams, which begin alike: y₁ = x₁ + attention(x₂), y₂ = x₂ + feed(y₁) (Reformer).

    What a layer read follows from what it gave, so the backward pass computes it again, layer by
    layer, and nothing is kept but the last states. The stack gives both streams side by side.
    """

    def width(self, dim: int) -> int:
        return 2 * dim

    def kept(self, layers: Sequence[int], dim: int) -> int:
        return 3 * dim + max(layers)

    def check(self, stack: Layers) -> None:
        if any(block.norm_at != "pre" for block in stack.blocks):
            must = "adds what sub-layers make of a normed stream"
            refuse(stack, "flow", must, 'give its blocks norm_at="pre"')
        if any(block.cross is not None for block in stack.blocks):
            refuse(stack, "flow", "has no third stream for cross-attention", "set cross=None")
        relative, attention = stack.relative, stack.blocks[0].attention
        if relative is not None and relative.parameters(attention, stack.dim):
            must = "does not hand gradients on to a trained relative position"
            refuse(stack, "flow", must, "try Rotary(), or flow=None")
