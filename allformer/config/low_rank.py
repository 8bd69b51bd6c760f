"""Linformer: keys and values projected along the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Heads, Layers
from allformer.config.mixer import Mixer


@dataclass(frozen=True)
class LowRank(Mixer):
    """softmax(q (E k)ᵀ) F v, where E and F make `rank` keys and values of up to `length` tokens
    (Linformer; Wang et al., 2020).

    `share` says what E and F are one matrix for (the paper's section 4): "none", each key head of
    each layer has its own two; "heads", two for each layer; "keys-values", one for each layer;
    "layers", one for the whole stack. Encoders only: what is projected mixes all tokens.
    """

    rank: Positive
    length: Positive
    share: Literal["none", "heads", "keys-values", "layers"] = "layers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank > self.length:
            refuse(self, "rank", f"must be at most length={self.length}", "try a quarter of it")

    def check(self, attention: Heads, stack: Layers) -> None:
        if stack.causal:
            must = "projects later tokens into every key, so it cannot be in a causal stack"
            refuse(self, "rank", must, 'try Features("elu") or Window(256), or causal=False')
        if stack.relative is not None and stack.relative.adds:
            name = type(stack.relative).__name__
            must = f"leaves no key at its place, so relative={name}(…) has nothing to add to"
            refuse(self, "rank", must, "try relative=Rotary(), which turns keys before")

    @property
    def longest(self) -> int:
        return self.length

    def parameters(self, attention: Heads, dim: int) -> int:
        matrices = {"none": 2 * attention.groups, "heads": 2, "keys-values": 1, "layers": 0}
        return matrices[self.share] * self.rank * self.length

    def common(self, attention: Heads, dim: int) -> int:
        return self.rank * self.length if self.share == "layers" else 0

    def keys(self, n: int, causal: bool) -> float:
        return self.rank

    def flops(self, attention: Heads, dim: int, n: int, causal: bool) -> int:
        # Each token goes into `rank` keys and values, and its query meets them.
        projected = 2 * 2 * self.rank * attention.groups * attention.size(dim)
        return projected + super().flops(attention, dim, n, causal)
