"""Positions that are added to the embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from allformer.config.base import Config, Natural, Positive
from allformer.config.check import above, refuse
from allformer.config.counting import Part, plain_line


class Places(Config, slot=True):
    """What numbers tokens, in whichever way."""

    @property
    def longest(self) -> int | None:
        """The most positions that it can number; None: no end."""
        return None

    @property
    def trained(self) -> int | None:
        """How many it was trained for, where that is told."""
        return getattr(self, "length", None)


class Position(Places, slot=True):
    """A position of each token, added to its vector; one with tensors must say `parameters`."""

    count: str = "kept"  # which tokens have a number: see `Learned`

    def parameters(self, width: int) -> int:
        """Of its own, for embeddings of this width."""
        return 0

    def line(self, name: str, width: int) -> Part:
        """Its line in the count."""
        return plain_line(name, self.parameters(width))


@dataclass(frozen=True)
class Sinusoidal(Position):
    """Sines and cosines added to the embedding; no parameters and no longest length.

    `layout="interleaved"` is the paper's formula (sine in even, cosine in odd features);
    `"halves"` has all sines first, as tensor2tensor and Marian compute it. `start` is the number
    of the first position; `count` as in `Learned`; `length` is told, not enforced, as in `Rotary`.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"
    base: Annotated[float, above(1, "the paper has 10000.0")] = 10_000.0
    start: Natural = 0
    count: Literal["kept", "all"] = "kept"
    length: Positive | None = None


@dataclass(frozen=True)
class Learned(Position):
    """A learned vector for each of `length` positions; longer input is refused, never cut.

    The table has `offset` more rows in front: position 0 is row `offset` (BART 2, RoBERTa pad + 1).
    `count` says which tokens have a number: `"kept"` those that the attention mask keeps, so that
    padding on the left changes nothing; `"all"`, padding too (BERT, BART); `"ids"` those whose id
    is not the padding's, whatever the mask says (RoBERTa; a caller's position_ids are then rows).
    """

    length: Positive
    offset: Natural = 0
    count: Literal["kept", "all", "ids"] = "kept"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count == "ids" and not self.offset:
            must = 'must be at least 1 with count="ids": padding has the row before the first'
            refuse(self, "offset", must, "RoBERTa has 2")

    @property
    def longest(self) -> int:
        return self.length

    def parameters(self, width: int) -> int:
        return (self.offset + self.length) * width

    def line(self, name: str, width: int) -> Part:
        rows = self.offset + self.length
        return Part(name, f"P·d = {rows:,}·{width}", self.parameters(width))
