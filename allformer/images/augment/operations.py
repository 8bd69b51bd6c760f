"""The operations of RandAugment, on batches B C H W from 0 to 1, an amount for each image.

What Pillow does with bytes is done here with numbers: the same formulas, without rounding between.
Nothing here waits for the device: constants are in the formulas, not in tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable

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
    red, green, blue = (images[:, i : i + 1] for i in range(3))
    return red * GREY[0] + green * GREY[1] + blue * GREY[2]


def smooth(images: Tensor) -> Tensor:
    """The mean of a pixel and its eight neighbours, itself five times; the border stays."""
    if min(images.shape[2:]) < 3:
        return images
    out, inner = images.clone(), images[:, :, 1:-1, 1:-1]
    out[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images, 3, 1) + 4 * inner) / 13
    return out


# What an image is blended with: black, its grey, the mean of its grey, a smoothed image.
BASES: dict[str, Callable[[Tensor], Tensor]] = {
    "brightness": torch.zeros_like,
    "colour": lambda images: grey(images).expand_as(images),
    "contrast": lambda images: grey(images).mean((1, 2, 3), keepdim=True).expand_as(images),
    "sharpness": smooth,
}


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
    m = matrix.to(images.device, images.dtype, non_blocking=True)[:, :, :, None, None]  # B 2 3 1 1
    across = (m[:, 0, 0] * x + m[:, 0, 1] * y[:, None] + m[:, 0, 2]) * (2 / width)
    down = (m[:, 1, 0] * x + m[:, 1, 1] * y[:, None] + m[:, 1, 2]) * (2 / height)
    return F.grid_sample(images, torch.stack([across, down], -1), align_corners=False)


def _matrix(amount: Tensor, **entries: Tensor | float) -> Tensor:
    """B 2 3 with the given entries (a b c / d e f), else the identity."""
    whole: dict[str, Tensor | float] = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 0.0}
    rows = [torch.ones_like(amount) * value for value in (whole | entries).values()]
    return torch.stack(rows, -1).view(-1, 2, 3)


# Of each move the matrix, by an amount (B) and the height and width of the images.
MATRICES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    # rows by `amount` times their height over the middle, columns by their distance from it
    "shear_x": lambda amount, height, width: _matrix(amount, b=amount),
    "shear_y": lambda amount, height, width: _matrix(amount, d=amount),
    # to the left, and up, by `amount` of the size
    "translate_x": lambda amount, height, width: _matrix(amount, c=amount * width),
    "translate_y": lambda amount, height, width: _matrix(amount, f=amount * height),
    # against the clock by so many degrees
    "rotate": lambda amount, height, width: _turn(amount.deg2rad()),
}


def _turn(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return _matrix(angle, a=cos, b=-sin, d=sin, e=cos)


# What is no move and no blend.
OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "posterise": posterise, "solarise": solarise, "autocontrast": autocontrast,
    "equalise": equalise,
}  # fmt: skip


def apply(name: str, images: Tensor, amount: Tensor) -> Tensor:
    """One operation on all images, an amount each: `apply("rotate", images, amounts)`."""
    if name in MATRICES:
        return warp(images, MATRICES[name](amount, *images.shape[2:]))
    if name in BASES:
        return blend(BASES[name](images), images, amount)
    return OTHERS[name](images, amount) if name in OTHERS else images
