"""Pictures to look at: boxes with their names, masks as colours over an image, and grids.

picture = draw_boxes("street.jpg", boxes, ["car 97 %", "dog 91 %"])
picture = draw_masks(picture, masks)
grid([picture, other], columns=2).save("seen.png")

All take what `read_image` takes, and give a Pillow image in RGB that is their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from allformer.errors import DataError
from allformer.images.pillow import pillow
from allformer.images.read import Image, read_image

# Told apart by those who see few colours, and on light and dark alike (Okabe and Ito, 2008).
COLOURS = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167), (150, 150, 150),
)  # fmt: skip


def colour(number: int) -> tuple[int, int, int]:
    """The colour of a class or an object; after the last one they begin anew."""
    return COLOURS[number % len(COLOURS)]


def enlarged(image: Image, least: int = 320) -> tuple[Any, int]:
    """A small image in whole multiples, so that words can be read on it; and how many."""
    picture = read_image(image)
    times = max(1, math.ceil(least / max(picture.size)))
    nearest = pillow().Resampling.NEAREST
    width, height = picture.size
    return picture.resize((width * times, height * times), nearest), times


def draw_boxes(
    image: Image,
    boxes: Any,
    labels: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
    scale: float = 1.0,
) -> Any:
    """Boxes (N 4: left, top, right, below, in pixels times `scale`), each with its label.

    `numbers` choose the colours, by default one box after the other.
    """
    from PIL import ImageDraw

    picture = read_image(image).copy()
    corners = np.asarray(boxes, float).reshape(-1, 4) * scale
    if labels and len(labels) != len(corners):
        raise DataError(f"{len(corners)} boxes have {len(labels)} labels; give one for each")
    pen = ImageDraw.Draw(picture)
    thick = max(2, round(max(picture.size) / 320))
    font = _font(picture)
    for i, box in enumerate(corners):
        shade = colour(i if numbers is None else int(numbers[i]))
        pen.rectangle(_within(box, picture.size), outline=shade, width=thick)
    for i, text in enumerate(labels):  # over all boxes
        shade = colour(i if numbers is None else int(numbers[i]))
        _write(pen, text, _within(corners[i], picture.size), shade, font, picture.size)
    return picture


def draw_masks(
    image: Image, masks: Any, numbers: Sequence[int] | None = None, strength: float = 0.55
) -> Any:
    """Masks (N H W, of the image's size) as colours that let it shine through."""
    picture = read_image(image)
    pixels = np.asarray(picture).astype(np.float32)
    found = np.asarray(masks, bool)
    if found.ndim != 3 or found.shape[1:] != pixels.shape[:2]:
        raise DataError(
            f"masks={found.shape} must be objects × height × width, {pixels.shape[:2]}; resize them"
        )
    for i, mask in enumerate(found):
        shade = np.array(colour(i if numbers is None else int(numbers[i])), np.float32)
        pixels[mask] = (1 - strength) * pixels[mask] + strength * shade
        edge = mask & ~_inner(mask)
        pixels[edge] = shade
    return pillow().fromarray(pixels.round().astype(np.uint8))


def draw_areas(image: Image, classes: Any, strength: float = 0.55, nothing: int = -1) -> Any:
    """A class for each pixel (H W) as colours over the image; `nothing` is left as it is."""
    numbers = np.asarray(classes)
    found = [int(number) for number in np.unique(numbers) if number != nothing]
    masks = np.stack([numbers == number for number in found]) if found else np.zeros(
        (0, *numbers.shape), bool
    )  # fmt: skip
    return draw_masks(image, masks, found, strength)


def grid(images: Sequence[Image], columns: int | None = None, gap: int = 4) -> Any:
    """Images side by side on white, row by row: `grid(images, columns=4).save("grid.png")`."""
    pictures = [read_image(image) for image in images]
    if not pictures:
        raise DataError("there is no image to put into a grid; give one or more")
    columns = columns or math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    width, height = (max(picture.size[axis] for picture in pictures) for axis in (0, 1))
    size = columns * (width + gap) - gap, rows * (height + gap) - gap
    sheet = pillow().new("RGB", size, (255, 255, 255))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % columns * (width + gap), i // columns * (height + gap)))
    return sheet


def _inner(mask: Any) -> Any:
    """The pixels of a mask whose four neighbours are in it too."""
    around = np.pad(mask, 1)
    return around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]


def _within(box: Any, size: tuple[int, int]) -> list[float]:
    """A box as far as it lies on the image, its right and lower edges on the last pixel in it."""
    (left, top, right, below), (width, height) = box.tolist(), size
    left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
    right, below = min(right - 1, width - 1), min(below - 1, height - 1)
    return [left, top, max(left, right), max(top, below)]


def _write(
    pen: Any, text: str, box: list[float], shade: tuple[int, ...], font: Any, size: tuple[int, int]
) -> None:
    """A label in its box's colour, above the box where there is room, else inside."""
    left, top, right, below = pen.textbbox((0, 0), text, font=font)
    wide, high = right - left + 6, below - top + 4
    x = max(0, min(box[0], size[0] - wide))
    y = box[1] - high if box[1] >= high else box[1]
    pen.rectangle([x, y, x + wide, y + high], fill=shade)
    bright = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] > 140
    ink = (0, 0, 0) if bright else (255, 255, 255)
    pen.text((x + 3 - left, y + 2 - top), text, fill=ink, font=font)


def _font(picture: Any) -> Any:
    """Pillow's own, of a size that can be read at this size of the image."""
    from PIL import ImageFont

    return ImageFont.load_default(size=max(11, round(max(picture.size) / 40)))
