"""Positions that are added to the embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from allformer.config.base import Config, Natural, Positive, Probability
from allformer.config.check import Rule, above, refuse
from allformer.config.counting import Part, Widths, plain_line


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

    def check(self, stack: Widths) -> None:
        """Refuse what makes no sense around it; asked when a stack is made."""

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
    `rounded` numbers are those of a table in fp32, whatever dtype reads them: Marian's.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"
    base: Annotated[float, above(1, "the paper has 10000.0")] = 10_000.0
    start: Natural = 0
    count: Literal["kept", "all"] = "kept"
    length: Positive | None = None
    rounded: bool = False


@dataclass(frozen=True)
class StoredSinusoids(Position):
    """Sines, then cosines, of `length` positions as a table that checkpoints store and nobody
    trains (Whisper): what is stored may be rounded, so it is kept as it is.

    The wavelengths run from 2π to `base`·2π, the last one included, as in tensor2tensor. Longer
    input is refused, never cut.
    """

    length: Positive
    base: Annotated[float, above(1, "Whisper has 10000.0")] = 10_000.0

    def check(self, stack: Widths) -> None:
        if stack.width % 2 or stack.width < 4:
            must = f"needs an even width of at least 4, but the embedding has {stack.width}"
            refuse(self, "length", must, "change Stack.dim")

    @property
    def longest(self) -> int:
        return self.length

    def line(self, name: str, width: int) -> Part:
        return Part(name, "stored, not learned", 0)


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


_SOME = Rule(bool, "must be a tuple of at least one number", "Reformer has (64, 64)")


@dataclass(frozen=True)
class Axial(Position):
    """A position is a cell of a grid of `shape`, and its vector those of its row, its column, …
    side by side, of the widths `dims`: few vectors for many positions (Reformer).

    `length` is the longest input where that is less than the grid; `count` as in `Sinusoidal`.
    `dropout` drops whole columns of the grid, for each row of the batch others.
    """

    shape: Annotated[tuple[Positive, ...], _SOME]
    dims: Annotated[tuple[Positive, ...], _SOME]
    length: Positive | None = None
    count: Literal["kept", "all"] = "kept"
    dropout: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shape) != len(self.dims):
            must = f"must have a width for each of the {len(self.shape)} axes of shape"
            refuse(self, "dims", must, f"shape is {self.shape}")

    def check(self, stack: Widths) -> None:
        if sum(self.dims) != stack.width:
            must = f"must sum up to the width of the embedding, {stack.width}"
            refuse(self, "dims", must, "change one of them")

    @property
    def longest(self) -> int:
        cells = math.prod(self.shape)
        return cells if self.length is None else min(cells, self.length)

    def parameters(self, width: int) -> int:
        return sum(n * d for n, d in zip(self.shape, self.dims, strict=True))

    def line(self, name: str, width: int) -> Part:
        axes = zip(self.shape, self.dims, strict=True)
        return Part(name, " + ".join(f"{n:,}·{d}" for n, d in axes), self.parameters(width))
