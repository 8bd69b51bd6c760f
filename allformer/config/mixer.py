"""Mixers: who looks at whom in an attention, and by what."""

from __future__ import annotations

from dataclasses import dataclass

from allformer.config.base import Config, Natural
from allformer.config.counting import Around, Heads


class Mixer(Config, slot=True):
    """What makes a context of projections. One that has tensors of its own must say `parameters`,
    or `af.count` disagrees with what is built; one that is not full attention, `keys` or, where
    queries meet no keys, `flops`; one that does not remember keys and values, `cached`."""

    chunk: int | None = (
        None  # rows are cut into chunks that long; all of a stack fill them up alike
    )

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

    def check(self, attention: Heads, stack: Around) -> None:
        """Refuse what makes no sense around it; asked when a stack is made."""

    def keys(self, n: int, causal: bool) -> float:
        """How many keys a query meets at n tokens, on average over the queries."""
        return _keys(n, n, n, causal)

    def flops(self, attention: Heads, dim: int, n: int, causal: bool) -> int:
        """Of one token between its projections and the output matrix, at n tokens."""
        # Each query meets `keys` keys (half of n, on average, when causal): Q Kᵀ and weights·V.
        return int(2 * 2 * self.keys(n, causal) * attention.heads * attention.size(dim))

    def cached(self, attention: Heads, dim: int) -> int:
        """Numbers of one token that decoding keeps: a key and a value."""
        return 2 * attention.groups * attention.size(dim)


@dataclass(frozen=True)
class Full(Mixer):
    """Every query may look at every key (that the masks allow)."""


@dataclass(frozen=True)
class Window(Mixer):
    """A query looks at no more than `left` keys before it and `right` after it, and at itself."""

    left: Natural
    right: Natural = 0

    def keys(self, n: int, causal: bool) -> float:
        return _keys(self.left, self.right, n, causal)


def _keys(left: int, right: int, n: int, causal: bool) -> float:
    return 1 + _side(left, n) + (0 if causal else _side(right, n))


def _side(reach: int, n: int) -> float:
    """Keys on one side of a query that looks `reach` far, on average over n places."""
    reach = min(reach, n - 1)
    return (reach * (reach + 1) / 2 + (n - 1 - reach) * reach) / n
