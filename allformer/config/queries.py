"""Learned queries: a source that reads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.base import Positive
from allformer.config.counting import Part, Widths
from allformer.config.source import Source


@dataclass(frozen=True)
class Queries(Source):
    """`count` places for what is to be found (DETR's object queries).

    Each begins as zeros; its learned vector is its position, added to queries and keys in every
    layer.
    """

    count: Positive

    @property
    def tokens_each(self) -> int:
        """Always as many."""
        return self.count

    def parameters(self, stack: Widths) -> int:
        return self.count * stack.width

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        text = f"{self.count}·d = {self.count}·{stack.width}"
        yield Part(f"{name} queries", text, self.parameters(stack))
