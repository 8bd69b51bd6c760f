"""Any image as red, green and blue, or as grey: 8 bits a channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from allformer.errors import DataError
from allformer.images.pillow import pillow

WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # one channel of 16 bits (I: of 32)


def to_mode(image: Any, mode: str, name: str) -> Any:
    """A Pillow image in the `mode` "RGB" or "L"; `name` is what an error calls it.

    What is transparent lies on white, as transformers' processors lay it; 16 bits keep their upper
    8, as Pillow does where it reads 16-bit colour itself.
    """
    if image.mode in WIDE:
        image = _narrow(image, name)
    if image.mode == "F":
        raise DataError(
            f"{name} has floating-point pixels, and nothing says which are black and white; "
            f"save it with 8 or 16 bits a channel"
        )
    try:
        if "A" in image.getbands() or "a" in image.getbands() or _has_clear_colour(image):
            image = image.convert("RGBA")
            white = pillow().new("RGBA", image.size, (255, 255, 255, 255))
            image = pillow().alpha_composite(white, image)
        return image if image.mode == mode else image.convert(mode)
    except ValueError:
        raise DataError(
            f"{name} has the colours {image.mode}, which do not become {mode}; save it as RGB"
        ) from None


def _has_clear_colour(image: Any) -> bool:
    return image.info.get("transparency") is not None


def _narrow(image: Any, name: str) -> Any:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(
            f"{name} has pixels from {values.min()} to {values.max()}, more than 16 bits hold; "
            f"save it with 8 or 16 bits a channel"
        )
    return pillow().fromarray((values.astype(np.int32) >> 8).astype(np.uint8))


def from_array(values: Any, name: str) -> Any:
    """An array (H W, H W C or C H W; 1, 3 or 4 channels; uint8 or uint16) as a Pillow image."""
    values = np.asarray(values)
    if values.ndim == 3 and values.shape[0] in (1, 3, 4):  # as transformers: the first wins
        values = np.moveaxis(values, 0, -1)
    channels = values.shape[2] if values.ndim == 3 else 1
    if values.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in values.shape:
        raise DataError(
            f"{name} is an array of {values.shape}; give H × W, H × W × C or C × H × W with "
            f"1, 3 or 4 channels"
        )
    if values.dtype == np.uint16:
        values = (values >> 8).astype(np.uint8)
    if values.dtype != np.uint8:
        raise DataError(
            f"{name} is an array of {values.dtype}; give uint8 from 0 to 255 (of numbers from 0 to "
            f"1: (255 * x).round().astype('uint8'))"
        )
    if channels == 1:
        values = values.reshape(values.shape[:2])
    if channels == 4:  # transformers' formula for arrays; Pillow's own rounds otherwise
        clear = values[..., 3:] / 255
        values = np.round(clear * values[..., :3] + (1 - clear) * 255).astype(np.uint8)
    return pillow().fromarray(np.ascontiguousarray(values))
