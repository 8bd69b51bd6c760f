"""Pictures of one size with a map each: of labels, or of segments and their labels.

Legend: N pictures, B those of a batch, H height, W width, M most segments of a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures import Pictures
from allformer.data.pictures.areas import Areas, areas_of
from allformer.data.pictures.picture import Array
from allformer.errors import DataError
from allformer.images.in_order import in_order
from allformer.images.pillow import pillow
from allformer.images.processor import WORKERS
from allformer.images.settings import Settings
from allformer.train.pictures.gallery import MOST_BYTES, Gallery

Map = tuple[Array, Array]  # H W int16 (−1: does not count), and the labels of its numbers


@dataclass(frozen=True)
class Reading:
    """How areas are read: `table` has for each label of the set that of the model (−1: none), and
    `background` that of what is no segment (None: there is none). `segments`: each has a number of
    its own, of `things` alone or of all; else a pixel's number is its label."""

    table: tuple[int, ...]
    background: int | None = None
    segments: bool = False
    things: bool = False

    def __call__(self, areas: Areas) -> Map:
        """The map of a picture."""
        classes = np.array([*self.table, -1], np.int64)[areas.classes]
        if not self.segments:
            rest = self.background if areas.whole and self.background is not None else -1
            return np.append(classes, rest).astype(np.int16)[areas.ids], np.zeros(0, np.int64)
        keep = classes >= 0
        if self.things and areas.things is not None:
            keep &= areas.things
        numbers = np.where(keep, np.cumsum(keep) - 1, -1)
        return np.append(numbers, -1).astype(np.int16)[areas.ids], classes[keep]


class MapGallery(Gallery):
    """`MapGallery(reading, pictures, settings).maps(index)`: B H W, and B M (−1: no such)."""

    def __init__(
        self,
        reading: Reading,
        pictures: Pictures,
        settings: Settings,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(pictures, settings, say)
        self.reading = reading
        size = 2 * len(self) * self.shape[1] * self.shape[2]
        self._maps = list(self._each(np.arange(len(self)))) if size <= MOST_BYTES else None

    def maps(self, index: Array) -> tuple[Array, Array]:
        """Those of the pictures numbered `index`."""
        kept = self._maps
        found = list(self._each(index)) if kept is None else [kept[int(i)] for i in index]
        most = max((len(own) for _, own in found), default=0)
        labels = np.full((len(found), max(1, most)), -1, np.int64)
        for row, (_, own) in zip(labels, found, strict=True):
            row[: len(own)] = own
        return np.stack([each for each, _ in found]), labels

    def _each(self, index: Array) -> Any:
        files = len(index) and isinstance(self.pictures[int(index[0])].image, Path)
        return in_order(self._map, index.tolist(), WORKERS if files else 1)

    def _map(self, index: int) -> Map:
        picture = self.pictures[index]
        areas = areas_of(picture)
        ids = areas.ids
        _check_size(picture.image, ids.shape, picture.name or f"picture {index}")
        size = self.shape[1:]
        if ids.shape != size:
            nearest = pillow().Resampling.NEAREST
            shown = pillow().fromarray(ids.astype(np.int32))
            ids = np.asarray(shown.resize((size[1], size[0]), nearest))
        return self.reading(Areas(ids, areas.classes, areas.things, areas.whole))


def _check_size(image: Any, shape: tuple[int, ...], name: str) -> None:
    """Refuse a map of another size than its image; of a file the beginning alone is read."""
    if isinstance(image, Path):
        with pillow().open(image) as found:
            sizes = {(found.height, found.width), (found.width, found.height)}  # turned, perhaps
    else:
        sizes = {tuple(image.shape[:2])}
    if tuple(shape) not in sizes:
        height, width = next(iter(sizes))
        raise DataError(
            f"{name} has {width} × {height} pixels, its map {shape[1]} × {shape[0]}; they must be "
            f"of one size"
        )
