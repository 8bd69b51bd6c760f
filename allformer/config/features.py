"""Attention by features of queries and keys: sums over keys instead of scores for each pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from allformer.config.base import Natural, Positive
from allformer.config.check import refuse
from allformer.config.counting import Heads, Layers
from allformer.config.mixer import Mixer


@dataclass(frozen=True)
class Features(Mixer):
    """φ(q)·Σ φ(k) v / φ(q)·Σ φ(k): linear in the length, and a state of fixed size when generating.

    `Features("elu")`: φ(x) = elu(x) + 1 (linear attention; Katharopoulos et al., 2020).
    `Features("favor", 256)`: `count` positive orthogonal random features whose mean is softmax
    attention (Performer; Choromanski et al., 2021). They are drawn by `seed`, differently in each
    layer, and saved with the model; `core.mixers.features.redraw` draws new ones.
    """

    distances: ClassVar[bool] = False  # a feature depends on the angle itself

    kind: Literal["elu", "favor"]
    count: Positive | None = None
    seed: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "favor" and self.count is None:
            refuse(self, "count", 'says how many features "favor" draws', "the paper has 256")
        if self.kind == "elu" and self.count is not None:
            refuse(
                self, "count", 'is of "favor": "elu" has a feature for each dimension', "drop it"
            )
        if self.kind == "elu" and self.seed:
            refuse(self, "seed", 'is of "favor": "elu" draws nothing', "drop it")

    def check(self, attention: Heads, stack: Layers) -> None:
        if stack.relative is not None and stack.relative.adds:
            name = type(stack.relative).__name__
            must = f"cannot go with relative={name}(…): there are no scores to add to"
            refuse(self, "kind", must, "try relative=Rotary(), which turns queries and keys")
        if attention.dropout:
            must = "cannot go with Features: there are no attention weights to drop out"
            refuse(attention, "dropout", must, "set it to 0.0; Block.dropout acts on the output")
        if self.kind == "elu" and attention.scale is not None:
            refuse(attention, "scale", 'belongs to softmax, not to Features("elu")', "drop it")

    def flops(self, attention: Heads, dim: int, n: int, causal: bool) -> int:
        # Each key adds φ(k) v to the sums, each query reads them; "favor" also makes φ by W x.
        size = attention.size(dim)
        count = self.count or size
        sums = 2 * (attention.heads + attention.groups) * count * size
        return sums if self.kind == "elu" else 2 * sums

    def cached(self, attention: Heads, dim: int) -> int:
        return 0  # the sums do not grow with the tokens

    def state(self, attention: Heads, dim: int, n: int) -> int:
        size = attention.size(dim)
        sums = (self.count or size) * (size + 1)  # Σ φ(k) v and Σ φ(k)
        return attention.groups * (sums + (self.kind == "favor"))  # the largest exponent so far
