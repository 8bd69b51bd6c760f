"""An image as a sequence: patches in reading order, behind tokens that stand for the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Natural, Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Part, Widths, dense
from allformer.config.source import Source

_TWO = Rule(lambda sizes: len(sizes) == 2, "must be (height, width)", "try (224, 224)")
Area = Annotated[tuple[Positive, ...], _TWO]


@dataclass(frozen=True)
class Patches(Source):
    """Squares of `patch` pixels, each through one matrix: what a convolution does whose stride is
    its kernel (ViT). What is left at the right and below is not read, as there.

    Before the patches stand `[CLS]` (`cls`), DeiT's distillation token (`distilled`) and so many
    `registers` (Darcet et al., 2023), which have no position. With `mask` there is a vector that
    takes the place of patches to be guessed (`bool_masked_pos`). So many tokens `behind` the
    patches look for objects, and have positions (YOLOS). `image` is the size that it is trained
    with; whether others are read too, its positions say.
    """

    patch: Positive
    channels: Positive = 3
    image: Area = (224, 224)
    cls: bool = True
    distilled: bool = False
    registers: Natural = 0
    mask: bool = False
    bias: bool = True
    behind: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.image) < self.patch:
            must = f"must be at least one patch of {self.patch} pixels high and wide"
            refuse(self, "image", must, "give a larger image, or a smaller patch")

    @property
    def placed(self) -> int:
        """Tokens before the patches that have a position, as the patches do."""
        return self.cls + self.distilled

    @property
    def front(self) -> int:
        """All tokens before the first patch."""
        return self.placed + self.registers

    @property
    def patches(self) -> slice:
        """Where the patches stand among the tokens."""
        return slice(self.front, -self.behind or None)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of patches of an image of its size."""
        return self.cut(*self.image)

    @property
    def tokens_each(self) -> int:
        """All tokens of an image of its size."""
        rows, columns = self.shape
        return self.front + rows * columns + self.behind

    def cut(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of any image: `Patches(16).cut(224, 320)` is (14, 20)."""
        return height // self.patch, width // self.patch

    def parameters(self, stack: Widths) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        inputs, width = self.channels * self.patch**2, stack.width
        text = f"{self.channels}·{self.patch}²·d" + (" + d" if self.bias else "")
        own = dense(inputs, width, self.bias)
        yield Part(f"{name} patches", text, own, 2 * inputs * width)
        extra = self.front + self.mask + self.behind
        if extra:
            yield Part(f"{name} extra tokens", f"{extra}·d = {extra}·{width}", extra * width)
