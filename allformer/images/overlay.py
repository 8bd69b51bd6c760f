"""A segmentation over its image, with names; and as files that programs read.

paint(image, found.ids, {0: "cat 99 %"}).save("cat.overlay.png")
save_ids(found.ids, "cat.ids.png")
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from allformer.errors import DataError
from allformer.images.draw import colour, draw_areas, enlarged
from allformer.images.pillow import pillow
from allformer.images.read import Image

BYTE, WORD = 255, 65_535  # the largest number of a grey PNG of 8 and of 16 bits: nobody
LEAST = 0.002  # of the image: a smaller segment gets no name


def paint(image: Image, ids: Any, names: Mapping[int, str]) -> Any:
    """The map `ids` (H W; −1: nobody) as colours over its image, each segment with its name in its
    middle. A small image is made larger, in whole multiples, so that names can be read."""
    from PIL import ImageDraw, ImageFont

    large, times = enlarged(image)
    numbers = np.asarray(ids).repeat(times, 0).repeat(times, 1)
    picture = draw_areas(large, numbers)
    size = max(11, round(max(picture.size) / 40))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=size)
    for number, text in names.items():
        mask = numbers == number
        if mask.sum() < max(1.0, LEAST * mask.size):
            continue
        x, y = _middle(mask)
        left, top, right, below = pen.textbbox((x, y), text, font=font, anchor="mm")
        across = min(max(left, 3), max(3, picture.width - (right - left) - 3)) - left
        down = min(max(top, 2), max(2, picture.height - (below - top) - 2)) - top
        box = [left + across - 3, top + down - 2, right + across + 3, below + down + 2]
        pen.rectangle(box, fill=colour(number))
        bright = sum(w * c for w, c in zip((0.299, 0.587, 0.114), colour(number), strict=True))
        ink = (0, 0, 0) if bright > 140 else (255, 255, 255)
        pen.text((x + across, y + down), text, fill=ink, font=font, anchor="mm")
    return picture


def _middle(mask: Any) -> tuple[int, int]:
    """A pixel of a mask, the one nearest to the mean of all."""
    rows, columns = np.nonzero(mask)
    far = (rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2
    nearest = int(far.argmin())
    return int(columns[nearest]), int(rows[nearest])


def save_ids(ids: Any, path: str | Path) -> None:
    """A map as a grey PNG: the numbers themselves, 255 for nobody; of 16 bits, and 65535, where
    there are more than 255 of them."""
    numbers = np.asarray(ids)
    most = int(numbers.max(initial=0))
    if most >= WORD:
        raise DataError(f"a segment has the number {most}, but a PNG holds at most {WORD - 1}")
    nobody, kind = (BYTE, np.uint8) if most < BYTE else (WORD, np.uint16)
    shown = np.where(numbers < 0, nobody, numbers).astype(kind)
    pillow().fromarray(shown).save(path)
