"""How many operations a step takes, by the formulas of `allformer.count`.

Legend: n the length of a row, N tokens of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from allformer.config import Codec, SoundCodec
from allformer.core.layout import Grid, Packed
from allformer.count import Count, count

# Backward costs twice what forward does; who keeps no activations runs forward once more.
TIMES = {"none": 3, "selective": 3, "layers": 4}
_NEAR, _FAR = 1024, 2048


class _Line(NamedTuple):
    """Operations of one token: what grows with the length of its row, and what does not."""

    plain: float
    by_length: float


class Operations:
    """`Operations(model.config).of(batch, labels)`: floating-point operations of a training step.

    Rows are taken as they lie in the batch, filler included: what the chip is given to do.
    """

    def __init__(self, config: Any, recompute: str = "none") -> None:
        self.times = TIMES[recompute]
        self.stacks: list[_Line] = []
        if isinstance(config, Codec):  # no tokens: all that it does is by the pixel
            pixels = config.channels * math.prod(config.image)
            self.head = sum(p.flops for p in config.lines()) / pixels
            return
        if isinstance(config, SoundCodec):  # by the sample
            self.head = sum(p.flops for p in config.lines()) / config.rate
            return
        near, far = count(config, _NEAR), count(config, _FAR)
        self.stacks = [_line(name, near, far) for name in config.stacks]
        names = tuple(config.stacks)
        self.head = float(sum(p.flops for p in near.parts if not p.name.startswith(names)))

    def of(self, batch: Any, labels: int) -> float:
        """Of a batch that is still on the host; its head scores `labels` tokens."""
        sides = [_rows(x) for x in layouts(batch)]
        total = float(self.head * labels)
        # One layout for several stacks (or none that we know): the last one serves the others.
        for i, line in enumerate(self.stacks):
            tokens, squares = sides[min(i, len(sides) - 1)] if sides else (labels, 0.0)
            total += line.plain * tokens + line.by_length * squares
        return self.times * total


def layouts(batch: Any) -> Iterator[Grid | Packed]:
    """The layouts among a batch's fields, in their order."""
    for part in batch:
        if isinstance(part, Grid | Packed):
            yield part
        elif isinstance(part, tuple):
            yield from layouts(part)


def _line(stack: str, near: Count, far: Count) -> _Line:
    """Straight lines in the length: two points give them."""
    flops = [sum(p.flops for p in c.parts if p.name.startswith(stack)) for c in (near, far)]
    slope = (flops[1] - flops[0]) / (_FAR - _NEAR)
    return _Line(flops[0] - slope * _NEAR, slope)


def _rows(layout: Grid | Packed) -> tuple[float, float]:
    """Tokens, and the sum of squared lengths."""
    if isinstance(layout, Grid):
        return float(layout.rows * layout.width), float(layout.rows * layout.width**2)
    lengths = layout.starts.diff().double()
    return float(lengths.sum()), float(lengths.square().sum())
