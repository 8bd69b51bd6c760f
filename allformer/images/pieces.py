"""A long image in square pieces, and a small one filled up: what EoMT's processor does.

in_pieces(pixels, settings)      # [C H W, …], [(0, 512), (171, 683)]
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from allformer.images.prepare import Array
from allformer.images.settings import Settings
from allformer.images.sizes import Size

Ends = tuple[tuple[int, int], ...]  # where each piece begins and ends along the longer side


class Pieces(NamedTuple):
    """An image prepared: its pieces P C H W, where they lie (none: it is whole), the size of the
    image itself, height and width, and the image, upright."""

    pixels: Tensor
    ends: Ends
    size: tuple[int, int]
    image: Any


def in_pieces(pixels: Array, settings: Settings) -> tuple[list[Array], Ends]:
    """C H W as it is, cut, or filled up with black, as the settings say."""
    cut: list[Array] = [pixels]
    ends: Ends = ()
    if settings.do_split_image is None:  # not EoMT's: DETR fills up whole batches, later
        return cut, ends
    if settings.do_split_image:
        cut, ends = split(pixels, settings.size["shortest_edge"])
    if settings.do_pad:
        cut = [padded(piece, filled(settings.size)) for piece in cut]
    return cut, ends


def split(pixels: Array, side: int) -> tuple[list[Array], Ends]:
    """Squares along the longer side, evenly spread, so that they overlap rather than stand out."""
    height, width = pixels.shape[1:]
    longer = max(height, width)
    count = math.ceil(longer / side)
    overlap = (count * side - longer) / (count - 1) if count > 1 else 0
    starts = [int(i * (side - overlap)) for i in range(count)]
    ends = tuple((start, start + side) for start in starts)
    if height > width:
        return [pixels[:, first:last] for first, last in ends], ends
    return [pixels[:, :, first:last] for first, last in ends], ends


def filled(size: Size) -> tuple[int, int]:
    """Height and width up to which an image is filled up; one that is resized to both has them."""
    if "height" in size:
        return size["height"], size["width"]
    return size["shortest_edge"], size.get("longest_edge") or size["shortest_edge"]


def padded(pixels: Array, size: tuple[int, int]) -> Array:
    """Black below and at the right of C H W, up to a size; what is larger stays."""
    more = [max(0, size[axis] - pixels.shape[1 + axis]) for axis in (0, 1)]
    return np.pad(pixels, ((0, 0), (0, more[0]), (0, more[1]))) if any(more) else pixels
