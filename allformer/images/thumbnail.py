"""Small pictures as text, for files and pages: PNG in base64.

thumbnail(pixels)                  # uint8 or 0 … 1; H W, H W C or C H W; a Pillow image, a path
label_map(ids, side=96)            # whole numbers H W: one colour each, 255 is nothing
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch

from allformer.errors import DataError
from allformer.images.pillow import pillow
from allformer.images.read import Image, read_image

SIDE = 128  # pixels of the longer side, at most: 50 of them make a page that can be mailed
NOTHING = 255  # in a label map
# Far from each other, and from the greys that pictures are full of; then they come again.
COLOURS = (
    (228, 87, 46), (41, 128, 205), (46, 160, 90), (240, 180, 30), (142, 84, 190), (0, 168, 168),
    (214, 62, 130), (140, 100, 60), (120, 190, 50), (70, 90, 200), (255, 140, 100), (90, 205, 235),
)  # fmt: skip


def thumbnail(picture: Image, side: int = SIDE) -> str:
    """The picture, made smaller where its longer side has more than `side` pixels.

    >>> thumbnail(torch.rand(3, 32, 32))
    'iVBORw0KGgo…'
    """
    if isinstance(picture, torch.Tensor):
        picture = picture.detach().cpu().numpy()
    if isinstance(picture, np.ndarray) and np.issubdtype(picture.dtype, np.floating):
        picture = np.rint(np.nan_to_num(picture).clip(0, 1) * 255).astype(np.uint8)
    image = read_image(picture)
    if max(image.size) > side:
        image.thumbnail((side, side))
    return _text(image)


def label_map(ids: Any, side: int = SIDE) -> str:
    """Numbers of labels, H W, as a picture of `COLOURS`; 255 is nothing and transparent.

    >>> label_map(np.zeros((32, 32), np.uint8))
    'iVBORw0KGgo…'
    """
    values = np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids)
    if values.ndim != 2 or not values.size or values.min() < 0 or values.max() > NOTHING:
        raise DataError(
            f"a label map of shape {values.shape} must be H × W numbers from 0 to {NOTHING}; "
            f"give one number for each pixel"
        )
    library = pillow()
    image = library.fromarray(values.astype(np.uint8))
    if max(image.size) > side:
        small = [max(1, round(n * side / max(image.size))) for n in image.size]
        image = image.resize(small, library.Resampling.NEAREST)  # a number between two is a third
    image.putpalette([part for k in range(NOTHING + 1) for part in COLOURS[k % len(COLOURS)]])
    return _text(image, transparency=NOTHING)


def as_bytes(text: str) -> bytes:
    """The file again: `read_image(as_bytes(thumbnail(pixels)))`."""
    return base64.b64decode(text)


def _text(image: Any, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True, **options)
    return base64.b64encode(file.getvalue()).decode()
