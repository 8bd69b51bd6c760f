"""Pictures of one size, by number: what a batch is made of.

Legend: N pictures, B those of a batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from allformer.data.pictures import Picture, Pictures
from allformer.data.pictures.picture import Array
from allformer.images.in_order import in_order
from allformer.images.prepare import pixels_of
from allformer.images.processor import WORKERS
from allformer.images.read import read_image
from allformer.images.settings import Settings

MOST_BYTES = 1 << 31  # what is kept in memory; more is read from its files again and again


class Gallery:
    """`Gallery(pictures, settings).pixels(index)`: B C H W, uint8, resized as the settings say."""

    def __init__(
        self, pictures: Pictures, settings: Settings, say: Callable[[str], None] | None = None
    ) -> None:
        self.pictures, self.settings = pictures, settings
        height, width = settings.size["height"], settings.size["width"]
        self.shape = (settings.channels, height, width)
        self._kept: Array | None = self._whole(say)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Picture:
        return self.pictures[index]

    def _whole(self, say: Callable[[str], None] | None) -> Array | None:
        """All in memory, N C H W, if they fit there."""
        there, (channels, height, width) = self.pictures.pixels, self.shape
        if there is not None and there.shape[1:] == (height, width, channels):
            return np.ascontiguousarray(there.transpose(0, 3, 1, 2))
        if len(self) * channels * height * width > MOST_BYTES:
            return None
        if say is not None:
            say(f"reading {len(self):,} pictures as {width} × {height}")
        return self._read(np.arange(len(self)))

    def pixels(self, index: Array) -> Array:
        """Those of the pictures numbered `index`."""
        return self._read(index) if self._kept is None else self._kept[index]

    def _read(self, index: Array) -> Array:
        out = np.empty((len(index), *self.shape), np.uint8)
        for i, image in enumerate(in_order(self._one, index.tolist(), WORKERS)):
            out[i] = image
        return out

    def _one(self, index: int) -> Array:
        picture = self.pictures[index]
        name = picture.name or f"picture {index}"
        source: Any = picture.image
        image = read_image(source, mode=self.settings.mode, name=name)
        return pixels_of(image, self.settings, name)
