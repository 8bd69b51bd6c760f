"""Mixers: who looks at whom in an attention, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from allformer.config.base import Config, Natural, Positive
from allformer.config.counting import Heads, Layers


class Mixer(Config, slot=True):
    """What makes a context of projections. One that has tensors of its own must say `parameters`,
    or `af.count` disagrees with what is built; one that is not full attention, `keys` or, where
    queries meet no keys, `flops`; one that does not remember keys and values, `cached`; one that
    remembers a part of the tokens or their sums, `state`."""

    distances: ClassVar[bool] = True  # turned queries and keys meet by their distance alone
    chunk: int | None = None  # rows are cut into chunks so long; all of a stack fill them up alike

    @property
    def draws(self) -> bool:
        """Whether it draws from torch's generator whenever it runs."""
        return False

    def projections(self, attention: Heads, dim: int) -> dict[str, int]:
        """The projections that it wants, and the width of each."""
        size = attention.size(dim)
        kv = attention.groups * size
        return {"q": attention.heads * size, "k": kv, "v": kv}

    def parameters(self, attention: Heads, dim: int) -> int:
        """Of its own, beyond the projections."""
        return 0

    def common(self, attention: Heads, dim: int) -> int:
        """Parameters that all layers of a stack with this mixer have together."""
        return 0

    @property
    def longest(self) -> int | None:
        """The most tokens that it can mix; None: no end."""
        return None

    def check(self, attention: Heads, stack: Layers) -> None:
        """Refuse what makes no sense around it; asked when a stack is made."""

    def keys(self, n: int, causal: bool) -> float:
        """How many keys a query meets at n tokens, on average over the queries."""
        return keys_within(n, n, n, causal)

    def flops(self, attention: Heads, dim: int, n: int, causal: bool) -> int:
        """Of one token between its projections and the output matrix, at n tokens."""
        # Each query meets `keys` keys (half of n, on average, when causal): Q Kᵀ and weights·V.
        return int(2 * 2 * self.keys(n, causal) * attention.heads * attention.size(dim))

    def cached(self, attention: Heads, dim: int) -> int:
        """Numbers of one token that decoding keeps: a key and a value."""
        return 2 * attention.groups * attention.size(dim)

    def state(self, attention: Heads, dim: int, n: int) -> int:
        """Numbers that decoding remembers after n tokens; here they grow with the tokens."""
        return n * self.cached(attention, dim)


@dataclass(frozen=True)
class Full(Mixer):
    """Every query may look at every key (that the masks allow)."""


@dataclass(frozen=True)
class Window(Mixer):
    """A query looks at no more than `left` keys before it and `right` after it, and at itself:
    `Window(256, 256)`; with `dilation`, at every so-manieth, which reaches so many times further.
    """

    left: Natural
    right: Natural = 0
    dilation: Positive = 1

    @property
    def reach(self) -> tuple[int, int]:
        """How many places before and after the query the furthest keys stand."""
        return self.left * self.dilation, self.right * self.dilation

    def keys(self, n: int, causal: bool) -> float:
        return keys_within(self.left, self.right, n, causal, self.dilation)

    def state(self, attention: Heads, dim: int, n: int) -> int:
        return min(n, self.reach[0]) * self.cached(attention, dim)  # a ring


def keys_within(left: int, right: int, n: int, causal: bool, dilation: int = 1) -> float:
    """How many keys a query meets, on average, that looks at no more than so many on each side."""
    return 1 + _side(left, n, dilation) + (0 if causal else _side(right, n, dilation))


def _side(most: int, n: int, dilation: int) -> float:
    """Keys on one side of a query that looks at `most`, on average over n places: the first d have
    none there, the next d one, and so on."""
    most = min(most, n // dilation)
    return (dilation * most * (most - 1) / 2 + (n - dilation * most) * most) / n
