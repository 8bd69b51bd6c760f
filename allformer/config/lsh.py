"""Attention among those that hash alike (Kitaev et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Natural, Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Heads, Layers
from allformer.config.local import check_chunks, chunk_keys
from allformer.config.mixer import Mixer

_Even = Rule(lambda n: n % 2 == 0, "must be an even number", "a rotation has two ends: try 64")


@dataclass(frozen=True)
class LSH(Mixer):
    """Queries and keys are one projection (a key is its query, normalised); tokens are hashed
    `hashes` times by random rotations, sorted by their buckets and cut into chunks of `chunk`,
    which look at themselves, `before` chunks before and `after` behind. Nobody looks at itself,
    unless alone; the rounds are merged by how much each has seen.

    `buckets` are the factors of their number; None: about 2n/chunk, in two factors where that is
    more than `one_factor` (None: 2·chunk). `seed` draws the same rotations in every call; None
    draws new ones from torch's generator.
    """

    chunk: Positive = 64
    hashes: Positive = 1
    buckets: Annotated[
        tuple[Annotated[Positive, _Even], ...],
        Rule(bool, "must have at least one factor", "leave it out"),
    ] | None = None  # fmt: skip
    before: Natural = 1
    after: Natural = 0
    one_factor: Positive | None = None
    seed: int | None = None

    @property
    def draws(self) -> bool:
        return self.seed is None

    def factors(self, n: int) -> tuple[int, ...]:
        """The factors of the number of buckets at n tokens: `LSH().factors(4096)`."""
        if self.buckets is not None:
            return self.buckets
        power = max(1, (2 * (n // self.chunk)).bit_length() - 1)
        if 2**power <= (self.one_factor or 2 * self.chunk):
            return (2**power,)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    def projections(self, attention: Heads, dim: int) -> dict[str, int]:
        width = attention.heads * attention.size(dim)
        return {"qk": width, "v": width}

    def check(self, attention: Heads, stack: Layers) -> None:
        check_chunks(self, stack)
        if attention.groups != attention.heads:
            refuse(attention, "kv_heads", "makes no sense: a key is its query", "leave it out")
        if stack.relative is not None:
            must = "turns or biases queries and keys, which are one here"
            refuse(stack, "relative", must, "give a position instead")

    def keys(self, n: int, causal: bool) -> float:
        if n <= self.chunk:
            return super().keys(n, causal)
        return self.hashes * chunk_keys(self, n)

    def flops(self, attention: Heads, dim: int, n: int, causal: bool) -> int:
        mixing = super().flops(attention, dim, n, causal)
        if n <= self.chunk:
            return mixing
        rotations = self.hashes * sum(self.factors(n)) // 2
        return mixing + 2 * rotations * attention.heads * attention.size(dim)

    def cached(self, attention: Heads, dim: int) -> int:
        """What is shared by query and key, the value, and a bucket for each round."""
        return attention.heads * (2 * attention.size(dim) + self.hashes)


def automatic(longest: int, chunk: int) -> int:
    """The most buckets in one factor for a model of so many positions (transformers' rule)."""
    return 2 * max(math.isqrt(longest // chunk), chunk)
