"""Pictures of one size, by number: what a batch is made of.

Legend: N pictures, B those of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from allformer.data.pictures import Picture, Pictures
from allformer.data.pictures.picture import Array
from allformer.images.crew import FEW, Crew, can_crew, read_pixels, usual_crew
from allformer.images.in_order import in_order
from allformer.images.processor import WORKERS
from allformer.images.settings import Settings

MOST_BYTES = 1 << 31  # what is kept in memory; more is read from its files again and again
_AHEAD = 2  # batches that are read before they are asked for


class Begun(NamedTuple):
    """Where the pixels of some pictures will be, and what to wait for."""

    pixels: Array
    reading: list[Future[Any]]


class Gallery:
    """`Gallery(pictures, settings).pixels(index)`: B C H W, uint8, resized as the settings say.

    Files are read by so many processes as `workers` says: None, one a core, where there are files
    and cores enough for it; 0, threads. What is `expect`ed is read while something else is done.
    """

    workers: int | None = None
    reduced: bool = False  # large JPEGs are decoded at a part of their size

    def __init__(
        self, pictures: Pictures, settings: Settings, say: Callable[[str], None] | None = None
    ) -> None:
        self.pictures, self.settings = pictures, settings
        height, width = settings.size["height"], settings.size["width"]
        self.shape = (settings.channels, height, width)
        self.fits = len(pictures) * settings.channels * height * width <= MOST_BYTES
        self._say, self._lock = say, threading.RLock()
        self._expected: dict[bytes, Begun] = {}

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
        read = self._read(np.arange(len(self)))
        if self._crew is not None:  # nothing is left to read
            self._end()
        return read

    def pixels(self, index: Array) -> Array:
        """Those of the pictures numbered `index`; at the first time all that fit are read."""
        if not self.fits:
            return self._read(index)
        with self._lock:  # batches are made by another thread than the one that validates
            whole = self._whole
        found: Array = whole[index]
        return found

    def expect(self, index: Array) -> None:
        """Begin to read those, which will be asked for next."""
        if self.fits or (crew := self._readers()) is None:
            return
        while len(self._expected) >= _AHEAD:  # nobody came for them
            self._expected.pop(next(iter(self._expected)))
        self._expected[index.tobytes()] = self._begun(index, crew)

    def _read(self, index: Array) -> Array:
        if (crew := self._readers()) is not None:
            begun = self._expected.pop(index.tobytes(), None) or self._begun(index, crew)
            for each in begun.reading:
                each.result()
            return begun.pixels
        out = np.empty((len(index), *self.shape), np.uint8)
        for i, image in enumerate(in_order(self._one, index.tolist(), WORKERS)):
            out[i] = image
        return out

    def _begun(self, index: Array, crew: Crew) -> Begun:
        out = np.empty((len(index), *self.shape), np.uint8)
        return Begun(out, crew.fill([self._named(i) for i in index.tolist()], out))

    def _readers(self) -> Crew | None:
        with self._lock:  # made once
            return self._crew

    @cached_property
    def _crew(self) -> Crew | None:
        """The processes that read, if there are any; they end with this gallery."""
        many = len(self) >= FEW and usual_crew() > 2
        count = (usual_crew() if many else 0) if self.workers is None else self.workers
        files = len(self) > 0 and all(
            isinstance(self.pictures[i].image, Path) for i in (0, len(self) - 1)
        )
        if not count or not files or not can_crew(self.settings):
            return None
        crew = Crew(self.settings, count, self._enough)
        self._end = weakref.finalize(self, crew.close)
        return crew

    def _one(self, index: int) -> Array:
        return read_pixels(*self._named(index), self.settings, self._enough)

    @property
    def _enough(self) -> int | None:
        """Pixels along an edge that a decoded image must have."""
        return max(self.shape[1:]) if self.reduced else None

    def _named(self, index: int) -> tuple[Any, str]:
        picture = self.pictures[index]
        return picture.image, picture.name or f"picture {index}"
