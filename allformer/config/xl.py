"""Transformer-XL's relative positions and its memory of earlier segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allformer.config.base import Natural, Positive, Probability
from allformer.config.check import refuse
from allformer.config.counting import Heads
from allformer.config.relative import Relative


@dataclass(frozen=True)
class XLRelative(Relative):
    """A score grows with what stands there and with how far it is (Dai et al., 2019, section 3.3).

    Distances are sinusoids, which each layer projects (W_R); u and v stand in for the query where
    it does not matter, for each layer or, with `untie=False`, once for all. Distances beyond
    `clamp` count as that one. `dropout` acts on the sinusoids.

    `memory`: the hidden states of so many tokens before a segment are looked at too (section 3.2).
    `blank`: before the first segment they are zeros that are looked at, as in transformers; else
    there are none.
    """

    memory: Natural = 0
    clamp: Positive | None = None
    untie: bool = True
    blank: bool = False
    dropout: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blank and not self.memory:
            refuse(self, "blank", "begins a memory, but memory=0", "give a memory, or blank=False")

    def fits(self, stack: Any) -> None:
        if not stack.causal:
            refuse(stack, "relative", "looks back alone", "set causal=True, or try Rotary()")
        if stack.dim % 2:
            refuse(stack, "dim", "must be even for sinusoids of distances", f"try {stack.dim + 1}")
        shapes = {(b.attention.heads, b.attention.size(stack.dim)) for b in stack.blocks}
        if not self.untie and len(shapes) > 1:
            must = "has one u and v for all blocks, whose heads differ"
            refuse(stack, "relative", must, "set untie=True, or make them equal")

    def parameters(self, attention: Heads, dim: int) -> int:
        return 0 if self.untie else self._biases(attention, dim)

    def of_layer(self, attention: Heads, dim: int) -> int:
        own = self._biases(attention, dim) if self.untie else 0
        return dim * attention.heads * attention.size(dim) + own

    def formula(self, attention: Heads, dim: int) -> str:
        return "d·HD + 2HD" if self.untie else "d·HD"

    def flops(self, attention: Heads, dim: int, keys: float) -> int:
        # A query meets each distance, and a distance is projected once for all queries of a row.
        inner = attention.heads * attention.size(dim)
        return int(2 * keys * inner) + 2 * dim * inner

    @staticmethod
    def _biases(attention: Heads, dim: int) -> int:
        return 2 * attention.heads * attention.size(dim)
