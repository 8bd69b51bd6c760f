"""Rectangles drawn by area and shape, as random crops and random erasing want them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from allformer.images.augment.chain import uniform

TRIES = 10


class Boxes(NamedTuple):
    """Where the rectangles of a batch lie, in pixels, B each; one of no height is none."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor

    @property
    def found(self) -> Tensor:
        """Whether there is one."""
        return self.height > 0

    def inside(self, height: int, width: int) -> Tensor:
        """Whether a pixel lies in its image's box, B 1 H W."""
        y = torch.arange(height, device=self.top.device)[:, None]
        x = torch.arange(width, device=self.top.device)
        top, left, high, wide = (side[:, None, None] for side in self)
        return ((y >= top) & (y < top + high) & (x >= left) & (x < left + wide))[:, None]


def draw_boxes(
    count: int,
    size: tuple[int, int],
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: Generator,
) -> Boxes:
    """So many boxes inside height × width, one each: its share of the area is uniform in `area`,
    the logarithm of width / height is uniform in that of `ratio`, its place is uniform. Of ten that
    are drawn the first that fits is taken.
    """
    height, width = size
    drawn = uniform(count * TRIES * 4, generator).view(count, TRIES, 4).unbind(-1)
    share, shape, down, right = drawn
    pixels = (area[0] + share * (area[1] - area[0])) * height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + shape * (high - low)).exp()
    h, w = (pixels / aspect).sqrt().round(), (pixels * aspect).sqrt().round()
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    top, left = (down * (height - h + 1)).floor(), (right * (width - w + 1)).floor()
    first = fits.int().argmax(1, keepdim=True)
    any_fits = fits.any(1)
    taken = [torch.where(any_fits, x.gather(1, first)[:, 0], 0).long() for x in (top, left, h, w)]
    return Boxes(*taken)
