"""A residual network of convolutions, whose feature map is read as a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from allformer.config.base import Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Part, Widths, dense
from allformer.config.source import Source

_SOME = Rule(bool, "must have a number for each stage", "ResNet-50 has four")
Sizes = Annotated[tuple[Positive, ...], _SOME]
NARROWER = 4  # how much narrower the middle of a bottleneck is


class Convolved(NamedTuple):
    """One convolution: channels in and out, the side of its kernel, its stride."""

    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1


@dataclass(frozen=True)
class ResNet(Source):
    """The last feature map of a residual network (He et al., 2015), each cell through a matrix to
    the stack's dim: what DETR's encoder reads.

    Its norms are frozen: stored numbers, which are not trained. A stage has so many layers
    (`depths`) of so many channels (`widths`); each but the first halves the map, the first one too
    with `halve_first`. A layer is a `bottleneck` of 1 × 1, 3 × 3 and 1 × 1 convolutions, or two of
    3 × 3; with `halve_early` a bottleneck halves in its first one.
    """

    stem: Positive = 64
    widths: Sizes = (256, 512, 1024, 2048)
    depths: Sizes = (3, 4, 6, 3)
    bottleneck: bool = True
    channels: Positive = 3
    halve_first: bool = False
    halve_early: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.widths) != len(self.depths):
            must = f"must have as many numbers as depths={self.depths}"
            refuse(self, "widths", must, "give one for each stage")
        if self.bottleneck and any(width % NARROWER for width in self.widths):
            refuse(self, "widths", f"must be divisible by {NARROWER} for bottlenecks", "widen them")

    def cut(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the feature map: `ResNet().cut(800, 1333)` is (25, 42)."""
        for _ in range(1 + len(self.depths) + self.halve_first):
            height, width = -(-height // 2), -(-width // 2)
        return height, width

    def layers(self) -> list[list[tuple[tuple[Convolved, ...], Convolved | None]]]:
        """Of each stage, of each layer: its convolutions, and that of its short cut."""
        stages, inputs = [], self.stem
        for i, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            stage = []
            for j in range(depth):
                stride = 2 if j == 0 and (i or self.halve_first) else 1
                stage.append(self._layer(inputs, width, stride))
                inputs = width
            stages.append(stage)
        return stages

    def _layer(
        self, inputs: int, width: int, stride: int
    ) -> tuple[tuple[Convolved, ...], Convolved | None]:
        aside = inputs != width or stride != 1
        short = Convolved(inputs, width, 1, stride) if aside else None
        if not self.bottleneck:
            return (Convolved(inputs, width, 3, stride), Convolved(width, width)), short
        narrow = width // NARROWER
        first, second = (stride, 1) if self.halve_early else (1, stride)
        middle = Convolved(narrow, narrow, 3, second)
        return (Convolved(inputs, narrow, 1, first), middle, Convolved(narrow, width, 1)), short

    def parameters(self, stack: Widths) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        """Its work depends on the image's size, and is not counted."""
        every = [Convolved(self.channels, self.stem, 7)]
        for stage in self.layers():
            for own, short in stage:
                every += [*own, *(() if short is None else (short,))]
        kernels = sum(one.inputs * one.outputs * one.kernel**2 for one in every)
        yield Part(f"{name} convolutions", f"{len(every)} kernels", kernels)
        wide = self.widths[-1]
        text = f"{wide}·d + d"
        yield Part(f"{name} projection", text, dense(wide, stack.width), 2 * wide * stack.width)
