"""One image as numbers, step by step, to the last bit as transformers' PIL backend makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError
from allformer.images.read import MOST_PIXELS
from allformer.images.settings import Settings
from allformer.images.sizes import resized

Array = npt.NDArray[Any]


def pixels_of(image: Any, settings: Settings, name: str = "the image") -> Array:
    """A Pillow image resized and cropped as asked, C H W, uint8."""
    if settings.do_resize:
        height, width = resized(settings.size, image.height, image.width, settings.multiple)
        if not 0 < height * width <= MOST_PIXELS:
            raise DataError(
                f"{name}, {image.width:,} × {image.height:,}, would be resized to {width:,} × "
                f"{height:,}: it is too long and narrow; cut it first"
            )
        image = image.resize((width, height), resample=settings.resample)
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels  # H W C
    if settings.do_center_crop:
        assert settings.crop_size is not None
        pixels = centre_crop(pixels, settings.crop_size["height"], settings.crop_size["width"])
    return pixels.transpose(2, 0, 1)


def centre_crop(pixels: Array, height: int, width: int) -> Array:
    """The middle of H W C; where it is smaller than asked, black is put around it.

    Of an odd number of pixels too many, one more goes at the bottom or right; of an odd number too
    few, one more is put at the top or left.
    """
    for axis, size in enumerate((height, width)):
        there = pixels.shape[axis]
        if there >= size:
            first = (there - size) // 2
            pixels = pixels.swapaxes(0, axis)[first : first + size].swapaxes(0, axis)
        else:
            before = -(-(size - there) // 2)
            around = [(0, 0)] * pixels.ndim
            around[axis] = (before, size - there - before)
            pixels = np.pad(pixels, around)
    return pixels


def value_table(settings: Settings) -> Array | None:
    """What each of the 256 values of each channel becomes, channels × 256; None: it stays.

    A byte has but 256 values, so that one look-up is rescaling (a product in fp64, rounded to fp32)
    and normalising (in fp32) at once, with the very same bits.
    """
    if not (settings.do_rescale or settings.do_normalize):
        return None
    values = np.tile(np.arange(256), (settings.channels, 1))
    if settings.do_rescale:
        table = (values.astype(np.float64) * settings.rescale_factor).astype(np.float32)
    else:
        table = values.astype(np.float32)
    if settings.do_normalize:
        mean, std = (
            np.broadcast_to(np.array(x, dtype=np.float32), settings.channels)[:, None]
            for x in (settings.image_mean, settings.image_std)
        )
        table = (table - mean) / std
    return table


def look_up(pixels: Array, table: Array | None) -> Array:
    """C H W of bytes → C H W by the table."""
    if table is None:
        return np.ascontiguousarray(pixels)
    out = np.empty(pixels.shape, np.float32)
    for channel, values, into in zip(pixels, table, out, strict=True):
        np.take(values, channel, out=into)
    return out
