"""What a size means, in each way in which preprocessor_config.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allformer.errors import DataError

Size = Mapping[str, int]  # {"height": 224, "width": 224}, {"shortest_edge": 224}, …

WAYS = (
    {"height", "width"},
    {"shortest_edge"},
    {"shortest_edge", "longest_edge"},
    {"max_height", "max_width"},
)
LARGEST = 16_384  # pixels along an edge: beyond it a number is a mistake, or meant to fill memory


def as_size(value: Any, field: str, square: bool) -> dict[str, int]:
    """A size as a dict: of a number a square, or the shortest edge; of a list height and width.

    >>> as_size(224, "size", square=False)
    {'shortest_edge': 224}
    """
    size = value
    if isinstance(value, int) and not isinstance(value, bool):
        size = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list | tuple) and len(value) == 2:
        size = {"height": value[0], "width": value[1]}
    if isinstance(size, dict):
        size = {key: edge for key, edge in size.items() if edge is not None}
    if not isinstance(size, dict) or set(size) not in WAYS:
        ways = "; ".join(" and ".join(sorted(way)) for way in WAYS)
        raise DataError(f"{field}={value!r} is no size; it must have {ways}")
    for key, edge in size.items():
        if not isinstance(edge, int) or isinstance(edge, bool) or not 0 < edge <= LARGEST:
            raise DataError(f"{field}.{key}={edge!r} must be a whole number from 1 to {LARGEST:,}")
    return size


def resized(size: Size, height: int, width: int, multiple: int = 1) -> tuple[int, int]:
    """Height and width that an image of `height` × `width` gets: `resized({"shortest_edge": 2}, 4,
    6)` → (2, 3). Where both edges have a limit, sides are cut down to a `multiple`."""
    if "height" in size:
        return size["height"], size["width"]
    if "max_height" in size:
        scale = min(size["max_height"] / height, size["max_width"] / width)
        return max(1, int(height * scale)), max(1, int(width * scale))
    if "longest_edge" in size:
        high, wide = _between(size["shortest_edge"], size["longest_edge"], height, width)
        return high - high % multiple, wide - wide % multiple
    short = size["shortest_edge"]
    long = int(short * max(height, width) / min(height, width))
    return (long, short) if width <= height else (short, long)


def _between(short: int, most: int, height: int, width: int) -> tuple[int, int]:
    """The shortest edge as asked, unless the longest would be longer than `most`: then that is.

    In the reference's order of products and divisions, for the sake of the last pixel.
    """
    low, high, edge = float(min(height, width)), float(max(height, width)), float(short)
    if high / low * short > most:
        edge = most * low / high
        short = round(edge)
    if min(height, width) == short:
        return height, width
    if width < height:
        return int(edge * height / width), short
    return short, int(edge * width / height)
