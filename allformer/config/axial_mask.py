"""Who looks at whom in a sequence of text and an image (DALL-E, Ramesh et al., 2021, figure 11).

    Attention(62, mixer=RowMask(text=256, width=32))

Text looks back at text. A code looks at all of the text, and back at some codes: at those whose
distance in reading order is one of `offsets`. So the grid's rows wrap around, as in the paper.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from allformer.config.base import Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Heads, Layers
from allformer.config.joined import Joined
from allformer.config.mixer import Mixer

_ODD = Rule(lambda n: n % 2 == 1, "must be odd: its middle is the code itself", "the paper has 11")


@dataclass(frozen=True)
class ImageMask(Mixer, slot=True):
    """`text` places of text before the codes, and `width` codes in a row of the image."""

    text: Positive
    width: Positive

    def offsets(self, codes: int) -> Collection[int]:
        """How far before a code those stand that it looks at; it looks at itself (0) too."""
        raise NotImplementedError

    def check(self, attention: Heads, stack: Layers) -> None:
        if not stack.causal:
            must = f"looks back alone ({type(self).__name__}), but Stack.causal=False"
            refuse(self, "text", must, "set causal=True")
        source: Any = getattr(stack, "source", None)
        if isinstance(source, Joined) and (source.length, source.shape[1]) != (
            self.text, self.width
        ):  # fmt: skip
            must = f"and width={self.width} must be those of Joined, {source.length} places of text"
            refuse(self, "text", f"{must} and {source.shape[1]} columns", "make them equal")

    def keys(self, n: int, causal: bool) -> float:
        words, codes = min(n, self.text), max(0, n - self.text)
        seen = words * (words + 1) / 2 + codes * self.text
        return (seen + sum(codes - far for far in self.offsets(codes))) / n


@dataclass(frozen=True)
class RowMask(ImageMask):
    """The codes before it as far as the one above it: `width` and itself."""

    def offsets(self, codes: int) -> range:
        return range(min(self.width + 1, codes))


@dataclass(frozen=True)
class ColumnMask(ImageMask):
    """The codes above it, and itself."""

    def offsets(self, codes: int) -> range:
        return range(0, codes, self.width)


@dataclass(frozen=True)
class NearMask(ImageMask):
    """A square of `kernel` codes' side around it, as far as it stands before: a convolution that
    looks back alone."""

    kernel: Annotated[Positive, _ODD] = 11

    def offsets(self, codes: int) -> set[int]:
        side = self.kernel // 2
        around = range(-side, side + 1)
        far = {row * self.width + column for row in range(side + 1) for column in around}
        return {each for each in far if 0 <= each < codes}
