"""Scenes composed of labelled pictures, as a set of pictures with areas.

Legend: N scenes, H height, W width.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from allformer.data.pictures import Pictures
from allformer.data.pictures.areas import Areas, Mapped
from allformer.data.pictures.picture import Array
from allformer.data.pictures.scenes import Scenes
from allformer.errors import DataError


class Composed:
    """`Composed(pictures, 1000)[0]`: scene 0, of objects from `pictures`, by (seed, number)."""

    def __init__(
        self,
        pictures: Pictures,
        count: int,
        canvas: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (2, 5),
        seed: int = 0,
    ) -> None:
        pixels = pictures.pixels
        if pixels is None or pixels.shape[3] != 1:
            raise DataError("scenes are composed of grey pictures of one size; give idx files")
        numbers = np.array([pictures[i].label for i in range(len(pictures))])
        self.labels, self.count = pictures.labels, count
        self.scenes = Scenes(
            pixels[..., 0], numbers, self.labels, count, canvas, objects, seed=seed
        )

    @cached_property
    def _all(self) -> tuple[Array, Array, list[Array]]:
        """The canvases, who is seen where, and the labels of those: drawn once."""
        images = np.empty((self.count, *self.scenes.canvas), np.uint8)
        owners = np.empty((self.count, *self.scenes.canvas), np.int8)
        classes = []
        for i in range(self.count):
            images[i], owners[i], chosen = self.scenes.compose(i)
            classes.append(self.scenes.labels[chosen].astype(np.int64))
        return images, owners, classes

    @property
    def pixels(self) -> Array | None:
        """All canvases, N H W 1."""
        return self._all[0][..., None]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Mapped:
        image = self._all[0][index][..., None]
        return Mapped(image, name=f"scene {index}", areas=lambda: self.areas(index))

    def areas(self, index: int) -> Areas:
        """Each object is a segment; the rest is background."""
        _, owners, classes = self._all
        found = classes[index]
        return Areas(owners[index].astype(np.int32), found, np.ones(len(found), bool), whole=True)
