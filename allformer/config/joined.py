"""Text and an image as one sequence: words first, then the codes of the image, row after row.

    Joined(words + codes, words=words, length=256, shape=(32, 32))

DALL-E (Ramesh et al., 2021): both vocabularies are one, codes come behind words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Part, Widths
from allformer.config.head import LMHead
from allformer.config.patches import Area
from allformer.config.position import Position
from allformer.config.source import Tokens
from allformer.config.stack import Stack


@dataclass(frozen=True)
class Joined(Tokens):
    """Of `vocab` ids the first `words` are text, the others codes of an image.

    A row is text on its first `length` places and codes behind them, those of a grid of `shape`.
    A text that is shorter is filled up with `pad_id`, and each of these places has a vector of its
    own for that: nothing is masked (appendix B.1).
    """

    words: Positive = 16_384
    length: Positive = 256
    shape: Area = (32, 32)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words >= self.vocab:
            refuse(self, "words", f"leaves no codes of vocab={self.vocab}", "give words + codes")
        if self.pad_id is not None and self.pad_id >= self.words:
            refuse(self, "pad_id", f"is a code: there are {self.words} words", "give a word's id")

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return self.vocab - self.words

    @property
    def cells(self) -> int:
        """Codes of an image."""
        return self.shape[0] * self.shape[1]

    def parameters(self, stack: Widths) -> int:
        return super().parameters(stack) + self._empty * stack.width

    @property
    def _empty(self) -> int:
        """Places that have a vector for where no text is left."""
        return 0 if self.pad_id is None else self.length

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        yield from super().lines(stack, name, shared)
        if n := self._empty:
            yield Part(f"{name} empty places", f"{n}·d = {n}·{stack.width}", n * stack.width)


@dataclass(frozen=True)
class TextAndPlane(Position):
    """A learned vector for each of `text` places; behind them, the vectors of a code's row and of
    its column in a grid of `shape` (rows × columns), added up."""

    text: Positive
    shape: Area

    count = "all"  # what fills a text up has places too

    @property
    def longest(self) -> int:
        return self.text + self.shape[0] * self.shape[1]

    @property
    def trained(self) -> int:
        return self.longest

    def check(self, stack: Any) -> None:
        source = stack.source
        if isinstance(source, Joined) and (source.length, source.shape) != (self.text, self.shape):
            must = f"must be that of the stack's Joined, {source.length} and {source.shape}"
            refuse(self, "text", must, f"give text={source.length}, shape={source.shape}")

    def parameters(self, width: int) -> int:
        return (self.text + sum(self.shape)) * width

    def line(self, name: str, width: int) -> Part:
        rows, columns = self.shape
        text = f"({self.text} + {rows} + {columns})·d"
        return Part(name, text, self.parameters(width))


@dataclass(frozen=True)
class JoinedHead(LMHead):
    """Scores over words where a word is next, over codes where a code is; the others are out of
    the question (−inf)."""

    def fits(self, stack: Stack) -> None:
        if not isinstance(stack.source, Joined):
            must = "has a source of another kind, which does not tell words from codes"
            refuse(stack, "source", must, "give it source=Joined(…), or the model LMHead()")
