"""One picture with what is known of it, and what a set of them answers.

Legend: H height, W width, C channels, n objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Picture:
    """`image` is its pixels, H W C uint8, or the file that has them; the rest is what is known.

    `boxes` are left, top, right, bottom in the picture's own pixels; `classes` says for each which
    of the set's labels it shows, `masks` which pixels are the object's. Of `captions` there may be
    several. `name` is what an error or a page calls it.
    """

    image: Array | Path
    label: int | None = None
    boxes: Array | None = None  # n 4, fp32
    classes: Array | None = None  # n
    masks: Array | None = None  # n H W, bool
    captions: tuple[str, ...] = ()
    name: str = ""


class Pictures(Protocol):
    """A set of pictures by number: what a reader gives for each split."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that `Picture.label` and `Picture.classes` number; () where there are none."""

    @property
    def pixels(self) -> Array | None:
        """All at once, N H W C uint8, where they lie in memory in one size; else None."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Picture: ...


class Part:
    """Some pictures of a set, by number: `Part(pictures, [3, 1, 4])`."""

    def __init__(self, whole: Pictures, index: Sequence[int] | Array) -> None:
        self.whole, self.index = whole, np.asarray(index, dtype=np.int64)

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of the whole."""
        return self.whole.labels

    @property
    def pixels(self) -> Array | None:
        """Those of the part."""
        return None if self.whole.pixels is None else self.whole.pixels[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> Picture:
        return self.whole[int(self.index[index])]


class InMemory:
    """Pictures of one size, N H W C uint8, with a label each."""

    def __init__(self, pixels: Array, numbers: Array, labels: tuple[str, ...]) -> None:
        self.pixels: Array | None = pixels
        self.numbers, self.labels = numbers, labels
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> Picture:
        return Picture(self._pixels[index], int(self.numbers[index]), name=f"image {index}")


def fingerprint(pictures: Pictures) -> str:
    """To know a set again: of what is known of each picture and its pixels, or of its file's path
    and size."""
    seen = blake2b(digest_size=16)
    seen.update(repr((len(pictures), pictures.labels)).encode())
    whole = pictures.pixels
    if whole is not None:
        seen.update(np.ascontiguousarray(whole).data)
    for i in range(len(pictures)):
        picture = pictures[i]
        seen.update(repr((picture.label, picture.captions)).encode("utf-8", "surrogatepass"))
        for known in (picture.boxes, picture.classes, picture.masks):
            if known is not None:
                seen.update(np.ascontiguousarray(known).tobytes())
        if isinstance(picture.image, Path):
            told = (picture.name or picture.image.name, picture.image.stat().st_size)
            seen.update(repr(told).encode("utf-8", "surrogatepass"))
        elif whole is None:
            seen.update(np.ascontiguousarray(picture.image).tobytes())
    return seen.hexdigest()
