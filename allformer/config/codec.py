"""The slot of a codec: a model that turns an image into a grid of codes, and these into one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

from allformer.config.base import Config
from allformer.config.counting import Part


class Codec(Config, slot=True):
    """An image as a few codes out of a codebook, and back. It has no stacks and no head: what it
    is made of stands in `allformer.codecs`. It is built, saved and loaded like any model."""

    head: ClassVar[None] = None
    codes: int  # in the codebook
    channels: int  # of an image
    image: tuple[int, ...]  # its height and width

    @property
    def stacks(self) -> dict[str, Any]:
        """It has none."""
        return {}

    @property
    def tokens_each(self) -> int:
        """The codes of an image."""
        return math.prod(self.grid)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes of an image."""
        raise NotImplementedError

    def lines(self) -> Iterator[Part]:
        """Its lines in the count; operations are those of an image."""
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        """What `build` holds: weights, and the vectors of a codebook that follow a mean."""
        return sum(part.parameters for part in self.lines())
