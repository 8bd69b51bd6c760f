"""Rectangles drawn by area and shape, as random crops and random erasing want them."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Generator

from allformer.images.augment.chain import uniform

TRIES = 10


class Box(NamedTuple):
    """Where a rectangle lies, in pixels."""

    top: int
    left: int
    height: int
    width: int


def draw_box(
    size: tuple[int, int],
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: Generator,
) -> Box | None:
    """A box inside height × width: its share of the area is uniform in `area`, the logarithm of
    width / height is uniform in that of `ratio`, its place is uniform. None: ten did not fit.
    """
    height, width = size
    for _ in range(TRIES):
        share, shape, down, right = uniform(4, generator).tolist()
        pixels = (area[0] + share * (area[1] - area[0])) * height * width
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + shape * (high - low))
        h, w = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
        if 0 < h <= height and 0 < w <= width:
            return Box(int(down * (height - h + 1)), int(right * (width - w + 1)), h, w)
    return None
