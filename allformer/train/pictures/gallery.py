"""Pictures of one size, by number: what a batch is made of.

Legend: N pictures, B those of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
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
        self.fits = len(pictures) * settings.channels * height * width <= MOST_BYTES
        self._say, self._lock = say, threading.Lock()

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Picture:
        return self.pictures[index]

    @cached_property
    def _whole(self) -> Array:
        """All in memory, N C H W."""
        there, (channels, height, width) = self.pictures.pixels, self.shape
        if there is not None and there.shape[1:] == (height, width, channels):
            return np.ascontiguousarray(there.transpose(0, 3, 1, 2))
        if self._say is not None:
            self._say(f"reading {len(self):,} pictures as {width} × {height}")
        return self._read(np.arange(len(self)))

    def pixels(self, index: Array) -> Array:
        """Those of the pictures numbered `index`; at the first time all that fit are read."""
        if not self.fits:
            return self._read(index)
        with self._lock:  # batches are made by another thread than the one that validates
            whole = self._whole
        found: Array = whole[index]
        return found

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
