"""The operations of RandAugment, on batches B C H W from 0 to 1, an amount for each image.

What Pillow does with bytes is done here with numbers: the same formulas, without rounding between.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow


def _each(amount: Tensor, images: Tensor) -> Tensor:
    return amount.to(images)[:, None, None, None]


def blend(base: Tensor, images: Tensor, amount: Tensor) -> Tensor:
    """0: the base, 1: the image, beyond 1: further away from the base."""
    return (base + _each(amount, images) * (images - base)).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    """B 1 H W; what has one channel is grey."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def brightness(images: Tensor, amount: Tensor) -> Tensor:
    """Against black."""
    return blend(torch.zeros_like(images), images, amount)


def colour(images: Tensor, amount: Tensor) -> Tensor:
    """Against its grey."""
    return blend(grey(images).expand_as(images), images, amount)


def contrast(images: Tensor, amount: Tensor) -> Tensor:
    """Against the mean of its grey."""
    return blend(grey(images).mean((1, 2, 3), keepdim=True).expand_as(images), images, amount)


def sharpness(images: Tensor, amount: Tensor) -> Tensor:
    """Against a smoothed image; the border stays."""
    if min(images.shape[2:]) < 3:
        return images
    kernel = images.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    channels = images.shape[1]
    smooth = images.clone()
    weights = kernel.expand(channels, 1, 3, 3)
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(images, weights, groups=channels)
    return blend(smooth, images, amount)


def posterise(images: Tensor, bits: Tensor) -> Tensor:
    """Only the upper `bits` of 8 are kept."""
    step = 2 ** (8 - _each(bits, images).round())
    return ((images * 255).round() / step).floor() * step / 255


def solarise(images: Tensor, threshold: Tensor) -> Tensor:
    """What is as bright as the threshold is inverted."""
    return torch.where(images >= _each(threshold, images), 1 - images, images)


def autocontrast(images: Tensor, amount: Tensor) -> Tensor:
    """The darkest value of each channel becomes 0, the brightest 1."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    wide = high > low
    return torch.where(wide, (images - low) / torch.where(wide, high - low, 1), images)


def equalise(images: Tensor, amount: Tensor) -> Tensor:
    """Each channel's values spread so that all are about as frequent; Pillow's whole numbers."""
    levels = (images * 255).round().long().flatten(2)  # B C N
    counts = images.new_zeros(*images.shape[:2], 256, dtype=torch.long)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255  # B C 1
    table = (step // 2 + counts.cumsum(2) - counts) // step.clamp_min(1)
    spread = table.clamp(0, 255).gather(2, levels).reshape(images.shape).to(images.dtype) / 255
    return torch.where(step[..., None] > 0, spread, images)


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Each pixel (x, y), counted from the middle, from where `matrix` (B 2 3, in pixels) sends it;
    bilinear, and black from outside."""
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    places = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], -1)  # H W 2
    m = matrix.to(images)
    source = torch.einsum("bij,hwj->bhwi", m[:, :, :2], places) + m[:, None, None, :, 2]
    scale = images.new_tensor([2 / width, 2 / height])
    return F.grid_sample(images, source * scale, align_corners=False)


def _matrix(amount: Tensor, **entries: Tensor | float) -> Tensor:
    """B 2 3 with the given entries (a b c / d e f), else the identity."""
    whole: dict[str, Tensor | float] = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 0.0}
    rows = [torch.ones_like(amount) * value for value in (whole | entries).values()]
    return torch.stack(rows, -1).view(-1, 2, 3)


def shear_x(images: Tensor, amount: Tensor) -> Tensor:
    """Rows move by `amount` times their height over the middle."""
    return warp(images, _matrix(amount, b=amount))


def shear_y(images: Tensor, amount: Tensor) -> Tensor:
    """Columns move by `amount` times their distance from the middle."""
    return warp(images, _matrix(amount, d=amount))


def translate_x(images: Tensor, amount: Tensor) -> Tensor:
    """To the left by `amount` of the width."""
    return warp(images, _matrix(amount, c=amount * images.shape[3]))


def translate_y(images: Tensor, amount: Tensor) -> Tensor:
    """Up by `amount` of the height."""
    return warp(images, _matrix(amount, f=amount * images.shape[2]))


def rotate(images: Tensor, amount: Tensor) -> Tensor:
    """Against the clock by `amount` degrees."""
    angle = amount.deg2rad()
    cos, sin = angle.cos(), angle.sin()
    return warp(images, _matrix(amount, a=cos, b=-sin, d=sin, e=cos))
