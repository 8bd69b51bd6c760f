"""Positions in a plane: each patch of an image has a row and a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from allformer.config.base import Natural
from allformer.config.check import above, refuse
from allformer.config.counting import Part
from allformer.config.patches import Area, Patches
from allformer.config.position import Position


class Plane(Position, slot=True):
    """A position of each patch of a picture, and of the tokens before them."""

    def check(self, stack: Any) -> None:
        if not isinstance(stack.source, Patches):
            must = f"is a {type(self).__name__}, which numbers patches of an image"
            refuse(stack, "position", must, "give source=Patches(…), or Learned positions")


@dataclass(frozen=True)
class LearnedPlane(Plane):
    """A learned vector for each of `front` tokens, each cell of rows × columns (`shape`), and each
    of the tokens `behind` them.

    An image of another size has other cells: their vectors are interpolated (bicubic; `antialias`
    as well where a grid shrinks) where the caller says so (`interpolate_pos_encoding=True`), or
    with `resize="always"` (DINOv2) unasked.
    """

    shape: Area
    front: Natural = 1
    resize: Literal["asked", "always"] = "asked"
    antialias: bool = False
    behind: Natural = 0

    @property
    def trained(self) -> int:
        return self.front + self.shape[0] * self.shape[1] + self.behind

    def check(self, stack: Any) -> None:
        super().check(stack)
        for field, own, wanted in (
            ("shape", self.shape, stack.source.shape),
            ("front", self.front, stack.source.placed),
            ("behind", self.behind, stack.source.behind),
        ):
            if own != wanted:
                must = f"must be that of the stack's Patches, {wanted}"
                refuse(self, field, must, f"give {field}={wanted}")

    def parameters(self, width: int) -> int:
        return self.trained * width

    def line(self, name: str, width: int) -> Part:
        rows, columns = self.shape
        beside = f"{self.front}" + (f" + {self.behind}" if self.behind else "")
        text = f"({beside} + {rows}·{columns})·d = {self.trained:,}·{width}"
        return Part(name, text, self.parameters(width))


@dataclass(frozen=True)
class SinusoidalPlane(Plane):
    """Sines and cosines of a patch's column in the first half of its features, of its row in the
    second, as MAE computes them; the tokens before the patches have none. Any size will do."""

    base: Annotated[float, above(1, "the papers have 10000.0")] = 10_000.0

    def check(self, stack: Any) -> None:
        super().check(stack)
        if stack.width % 4:
            must = "must be divisible by 4 for SinusoidalPlane positions"
            refuse(stack, "dim", must, f"try {stack.width + 4 - stack.width % 4}")
