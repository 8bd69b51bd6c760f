"""Pictures with boxes, by number; and how both are moved for training.

Legend: B pictures of a batch, M objects of a picture at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from allformer.config.check import Rule
from allformer.data.pictures import Picture, Pictures
from allformer.data.pictures.picture import Array
from allformer.errors import DataError
from allformer.images.augment.objects import NOBODY, MoveObjects
from allformer.images.pillow import pillow
from allformer.train.pictures.anew import Objects
from allformer.train.pictures.data import PictureData
from allformer.train.pictures.gallery import Gallery
from allformer.train.sections.section import Fraction, Section, share

_RANGE = Rule(lambda x: len(x) == 2 and 0 < x[0] <= x[1], "must be two factors", "try [0.8, 1.25]")


@dataclass(frozen=True)
class Moves(Section, section="data.augment"):
    """What is done to a picture and the boxes on it by chance."""

    flip: Fraction = 0.0  # how many are mirrored
    zoom: Annotated[tuple[float, ...], _RANGE] = (1.0, 1.0)  # factors, from … to
    shift: Annotated[float, share("0.1")] = 0.0  # of the sides, at most
    least: Fraction = 0.5  # of an object that must stay on the picture
    still: Fraction = 0.0  # how many are neither enlarged nor shifted, and so stay sharp
    anew: bool = False  # composed scenes are never the same twice
    objects: Objects | None = None  # on each of those, from … to; None: as the data has them

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objects is not None and not self.anew:
            self.refuse("objects", "are put on scenes that are composed anew", "give anew: true")

    def made(self) -> MoveObjects | None:
        """None: nothing is moved."""
        if not (self.flip or self.shift or self.zoom != (1.0, 1.0)):
            return None
        zoom = self.zoom[0], self.zoom[1]
        return MoveObjects(self.flip, zoom, self.shift, self.least, self.still)


@dataclass(frozen=True)
class BoxedPictures(PictureData):
    """Pictures with boxes, moved by chance each time they are trained on."""

    augment: Moves = field(default_factory=Moves)


class BoxGallery(Gallery):
    """Pictures in one size, with the classes and boxes of their objects that are no crowd."""

    def __init__(self, numbers: Array, pictures: Pictures, *more: Any) -> None:
        """`numbers` are those that the set's classes have for the model."""
        super().__init__(pictures, *more)
        self.numbers = numbers

    @cached_property
    def objects(self) -> list[tuple[Array, Array]]:
        """Of each picture: classes, and boxes as shares of it."""
        return [_objects(self.pictures[i], self.numbers) for i in range(len(self.pictures))]

    @cached_property
    def most(self) -> int:
        """Objects of a picture, at most."""
        return max((len(classes) for classes, _ in self.objects), default=0)

    def padded(self, index: Array, most: int) -> tuple[Array, Array]:
        """Classes B M (−1: no object), and boxes B M 4 as shares of the picture."""
        classes = np.full((len(index), most), NOBODY, np.int64)
        boxes = np.zeros((len(index), most, 4), np.float32)
        for row, i in enumerate(index.tolist()):
            known, where = self.objects[i]
            classes[row, : len(known)], boxes[row, : len(known)] = known, where
        return classes, boxes


def _objects(picture: Picture, numbers: Array) -> tuple[Array, Array]:
    """Classes, and boxes as models learn them: centre and size, as shares of the picture."""
    if picture.boxes is None or picture.classes is None:
        raise DataError(
            f"{picture.name or 'a picture'} has no boxes; detection is learnt from pictures with "
            f"boxes and classes (COCO, VOC, YOLO or scenes)"
        )
    height, width = size_of(picture)
    side = np.array([width, height] * 2, np.float32)
    corners = np.clip(picture.boxes / side, 0, 1)
    low, high = corners[:, :2], corners[:, 2:]
    keep = (high > low).all(1)
    if picture.crowd is not None:
        keep &= ~picture.crowd
    boxes = np.concatenate([(low + high) / 2, high - low], 1)[keep]
    return numbers[picture.classes[keep]], boxes.astype(np.float32)


def size_of(picture: Picture) -> tuple[int, int]:
    """Height and width, of a file from its header."""
    if not isinstance(picture.image, Path):
        return picture.image.shape[0], picture.image.shape[1]
    with pillow().open(picture.image) as image:
        width, height = image.size
    return height, width
