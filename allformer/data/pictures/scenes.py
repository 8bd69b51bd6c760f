"""Composed scenes: objects of a labelled set, several on a canvas, with boxes and masks.

scenes = Scenes(pixels, labels, names, count=1000, seed=0)
scenes[0].objects.boxes

Scene i is drawn by (seed, i) alone. What lies later covers what lies below it: masks and boxes are
of what stays visible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from allformer.data.pictures.objects import Array, Marked, MarkedSequence, Objects, as_boxes, box_of
from allformer.errors import DataError

TRIES = 20  # places that are tried for an object before it is left out


@dataclass(frozen=True, eq=False)
class Scenes(MarkedSequence):
    """`count` scenes of objects from `pixels` (M h w, uint8) and `labels` (M).

    A scene has from `objects[0]` to `objects[1]` of them, fewer where no place is left. An object
    is where its pixels are at least `ink`; of each, a share of `visible` is seen at least.
    """

    pixels: Array
    labels: Array
    names: tuple[str, ...]
    count: int
    canvas: tuple[int, int] = (96, 96)
    objects: tuple[int, int] = (2, 5)
    visible: float = 0.5
    ink: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.pixels) != len(self.labels) or self.pixels.ndim != 3 or not len(self.pixels):
            raise DataError(
                f"scenes are made of images and labels, as many of each, but there are "
                f"{self.pixels.shape} and {self.labels.shape}; give M × height × width and M"
            )
        if any(c < s for c, s in zip(self.canvas, self.pixels.shape[1:], strict=True)):
            raise DataError(
                f"canvas={self.canvas} is smaller than the objects, {self.pixels.shape[1:]}; "
                f"give a larger one"
            )
        if not 1 <= self.objects[0] <= self.objects[1]:
            raise DataError(f"objects={self.objects} must be from at least 1 to no fewer")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Marked:
        if not -self.count <= i < self.count:
            raise IndexError(f"there are {self.count} scenes")
        image, owner, chosen = self.compose(i % self.count)
        masks = [owner == number for number in range(len(chosen))]
        boxes = as_boxes([box_of(mask) for mask in masks])
        found = Objects(self.canvas, self.labels[chosen].astype(np.int64), boxes, tuple(masks))
        return Marked(image, found, f"scene {i}")

    def drawn(self, seed: int) -> Scenes:
        """The same set of other scenes."""
        return replace(self, seed=seed)

    def compose(self, i: int) -> tuple[Array, Array, Array]:
        """The canvas, H W; which object is seen at each pixel (−1: none); the objects' numbers."""
        random = np.random.default_rng((self.seed, i))
        image = np.zeros(self.canvas, np.uint8)
        owner = np.full(self.canvas, -1, np.int16)
        left = np.zeros(0, np.int64)  # of each object so far: pixels that may still be covered
        chosen: list[int] = []
        for number in self._choose(random):
            stamp = self.pixels[number]
            ink = stamp >= self.ink
            place = self._place(random, owner, ink, left) if (area := int(ink.sum())) else None
            if place is None:
                continue
            image[place][ink] = stamp[ink]
            left -= _covered(owner, place, ink, len(left))
            owner[place][ink] = len(chosen)
            left = np.append(left, area - math.ceil(self.visible * area))
            chosen.append(number)
        return image, owner, np.asarray(chosen, np.int64)

    def _choose(self, random: np.random.Generator) -> list[int]:
        least, most = self.objects
        drawn = random.integers(0, len(self.pixels), int(random.integers(least, most + 1)))
        return [int(number) for number in drawn]

    def _place(
        self, random: np.random.Generator, owner: Array, ink: Array, left: Array
    ) -> tuple[slice, slice] | None:
        """Where an object of this shape leaves enough to be seen of all those below it."""
        height, width = ink.shape
        most = self.canvas[0] - height + 1, self.canvas[1] - width + 1
        for y, x in random.integers(0, most, (TRIES, 2)).tolist():
            place = slice(y, y + height), slice(x, x + width)
            if (_covered(owner, place, ink, len(left)) <= left).all():
                return place
        return None


def _covered(owner: Array, place: tuple[slice, slice], ink: Array, count: int) -> Array:
    """How many pixels of each object lie under this one."""
    under = owner[place][ink]
    return np.bincount(under[under >= 0], minlength=count)
