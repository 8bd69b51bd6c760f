"""The data section of segmentation: pictures with maps or masks, moved by chance.

data: {path: VOC2012, image: [256, 256], augment: {flip: 0.5, zoom: [0.5, 2.0]}}
data: {path: fashion-mnist, format: scenes, validation: test}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from allformer.config.check import Rule
from allformer.data.pictures import Pictures, open_pictures
from allformer.data.pictures.maps import has_maps
from allformer.data.pictures.panoptic import has_segments
from allformer.images.augment.place import RandomPlace
from allformer.train.pictures.anew import Objects
from allformer.train.pictures.data import PictureData
from allformer.train.sections.section import Fraction, Section

_RANGE = Rule(lambda x: len(x) == 2 and 0 < x[0] <= x[1], "must be two factors", "try [0.5, 2.0]")


@dataclass(frozen=True)
class MapMoves(Section, section="data.augment"):
    """What is done to a picture and its map by chance."""

    flip: Fraction = 0.0  # how many are mirrored
    zoom: Annotated[tuple[float, ...], _RANGE] = (1.0, 1.0)  # factors, from … to
    still: Fraction = 0.0  # how many keep their size, and so stay sharp
    anew: bool = False  # composed scenes are never the same twice
    objects: Objects | None = None  # on each of those, from … to; None: as the data has them

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objects is not None and not self.anew:
            self.refuse("objects", "are put on scenes that are composed anew", "give anew: true")

    def made(self) -> RandomPlace:
        """As it is done to a batch."""
        return RandomPlace(self.flip, (self.zoom[0], self.zoom[1]), self.still)


@dataclass(frozen=True)
class MapData(PictureData, section="data"):
    """Pictures with maps, moved each time they are trained on. Of a folder that others would read
    for its boxes too, the maps are what is meant."""

    augment: MapMoves = field(default_factory=MapMoves)

    def _splits(self) -> dict[str, Pictures]:
        path = Path(self.path or "")
        if self.path is None or self.format != "auto":
            return super()._splits()
        if has_segments(path):
            return open_pictures(path, "panoptic")
        return open_pictures(path, "maps") if has_maps(path) else super()._splits()
