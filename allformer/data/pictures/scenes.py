"""Composed scenes: objects of a labelled set, several on a canvas, with boxes and masks.

    scenes = Scenes(pixels, labels, names, count=1000, seed=0)
    scenes[0].boxes, scenes[0].masks

Scene i is drawn by (seed, i) alone. What lies later covers what lies below it: masks and boxes are
of what stays visible. As data of a recipe: `data: {path: fashion-mnist, format: scenes}`, or a file
that says more:

    scenes.json: {"of": "fashion-mnist", "train": 30000, "test": 2000, "canvas": [96, 96]}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.open import SPLITS, open_pictures, reads
from allformer.data.pictures.outlines import Outlines, as_boxes, box_of
from allformer.data.pictures.picture import Array, InMemory, Picture, Pictures
from allformer.errors import DataError
from allformer.json_file import read_object

FILE = "scenes.json"
TRIES = 20  # places that are tried for an object before it is left out
COUNTS = {"train": 30_000, "val": 1_000, "test": 2_000}
USUAL: dict[str, Any] = {"canvas": [96, 96], "objects": [2, 5], "visible": 0.7, "seed": 0}


@dataclass(frozen=True, eq=False)
class Scenes:
    """`count` scenes of objects from `images` (M h w, uint8) and their `numbers` (M), which are
    those of `labels`.

    A scene has from `objects[0]` to `objects[1]` of them, fewer where no place is left. An object
    is where its pixels are at least `ink`; of each, a share of `visible` is seen at least.
    """

    images: Array
    numbers: Array
    labels: tuple[str, ...]
    count: int
    canvas: tuple[int, int] = (96, 96)
    objects: tuple[int, int] = (2, 5)
    visible: float = 0.7
    ink: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.images) != len(self.numbers) or self.images.ndim != 3 or not len(self.images):
            raise DataError(
                f"scenes are made of images and labels, as many of each, but there are "
                f"{self.images.shape} and {self.numbers.shape}; give M × height × width and M"
            )
        if any(c < s for c, s in zip(self.canvas, self.images.shape[1:], strict=True)):
            raise DataError(
                f"canvas={self.canvas} is smaller than the objects, {self.images.shape[1:]}; "
                f"give a larger one"
            )
        if not 1 <= self.objects[0] <= self.objects[1]:
            raise DataError(f"objects={self.objects} must be from at least 1 to no fewer")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Picture:
        if not -self.count <= index < self.count:
            raise IndexError(f"there are {self.count} scenes")
        image, owner, chosen, boxes = self._all[index % self.count]
        masks: Any = Outlines([owner == number for number in range(len(chosen))], self.canvas)
        classes = self.numbers[chosen].astype(np.int64)
        return Picture(
            image[..., None], boxes=boxes, classes=classes, masks=masks, name=f"scene {index}"
        )

    @property
    def pixels(self) -> Array:
        """All of them, N H W 1."""
        return np.stack([one[0] for one in self._all])[..., None]

    @cached_property
    def _all(self) -> list[tuple[Array, Array, Array, Array]]:
        """Each drawn once: canvas, owners, objects' numbers, boxes."""
        return [self._one(i) for i in range(self.count)]

    def _one(self, i: int) -> tuple[Array, Array, Array, Array]:
        image, owner, chosen = self.compose(i)
        boxes = as_boxes([box_of(owner == number) for number in range(len(chosen))])
        return image, owner, chosen, boxes

    def compose(self, i: int) -> tuple[Array, Array, Array]:
        """The canvas, H W; which object is seen at each pixel (−1: none); the objects' numbers."""
        random = np.random.default_rng((self.seed, i))
        image = np.zeros(self.canvas, np.uint8)
        owner = np.full(self.canvas, -1, np.int8)
        left = np.zeros(0, np.int64)  # of each object so far: pixels that may still be covered
        chosen: list[int] = []
        for number in self._choose(random):
            stamp = self.images[number]
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
        drawn = random.integers(0, len(self.images), int(random.integers(least, most + 1)))
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


@reads("scenes", knows=lambda path: path.is_file() and path.name.endswith(FILE))
def read_scenes(path: Path) -> dict[str, Pictures]:
    """Scenes of the objects that a directory, or the one that a file names, has: of its training
    split for training, the last twelfth of it for validation, and of its test split for the test.
    """
    said = read_object(path, DataError) if path.is_file() else {}
    odd = [name for name in said if name not in {*USUAL, *SPLITS, "of"}]
    if odd or (path.is_file() and not isinstance(said.get("of"), str)):
        told = f"{odd[0]!r} is not known" if odd else "'of' must name the directory of the objects"
        raise DataError(f"{path}: {told}; it has of, {', '.join((*SPLITS, *USUAL))}")
    counts = {name: said.pop(name) for name in SPLITS if name in said} or COUNTS
    parts = _objects(path.parent / said.pop("of") if path.is_file() else path)
    more: dict[str, Any] = {**USUAL, **said}
    more = {name: tuple(x) if isinstance(x, list) else x for name, x in more.items()}
    seed = more.pop("seed") * len(SPLITS)
    try:
        return {
            name: Scenes(*parts[name], count=counts[name], seed=seed + i, **more)
            for i, name in enumerate(SPLITS)
            if name in counts and name in parts
        }
    except TypeError as error:
        raise DataError(f"{path} says something of another kind: {error}") from None


def _objects(path: Path) -> dict[str, tuple[Array, Array, tuple[str, ...]]]:
    """Images, their numbers and the names, by split."""
    splits = open_pictures(path)
    parts: dict[str, tuple[Array, Array, tuple[str, ...]]] = {}
    for name, part in splits.items():
        if not isinstance(part, InMemory) or part.pixels is None or part.pixels.shape[3] != 1:
            raise DataError(
                f"{path} has no grey images of one size (idx files), of which scenes are composed; "
                f"give such a directory"
            )
        parts[name] = part.pixels[..., 0], part.numbers, part.labels
    if "val" not in parts and "train" in parts:
        images, numbers, labels = parts["train"]
        last = len(images) - max(1, len(images) // 12)
        parts["train"] = images[:last], numbers[:last], labels
        parts["val"] = images[last:], numbers[last:], labels
    return parts
