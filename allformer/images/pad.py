"""Prepared images of several sizes on one sheet, and which of its pixels are theirs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Images C H W → `pixel_values` B C H W, zeros at the right and below, and `pixel_mask` B H W,
    1 where an image is.

    >>> padded([torch.ones(3, 8, 6), torch.ones(3, 4, 9)])[0].shape
    torch.Size([2, 3, 8, 9])
    """
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    pixels = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    mask = torch.zeros(len(images), height, width, dtype=torch.long)
    for row, own, image in zip(pixels, mask, images, strict=True):
        high, wide = image.shape[1:]
        row[:, :high, :wide] = image
        own[:high, :wide] = 1
    return pixels, mask
