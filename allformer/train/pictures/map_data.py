"""The data section of segmentation: pictures with maps, or scenes composed of labelled pictures.

data: {path: VOC2012, image: [256, 256], flip: 0.5, scale: [0.5, 2.0]}
data: {path: fashion-mnist, scenes: {count: 20000, canvas: [64, 64]}, validation: test}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from allformer.config.check import Rule
from allformer.data.pictures import Pictures, open_pictures
from allformer.data.pictures.maps import has_maps
from allformer.data.pictures.panoptic import has_segments
from allformer.errors import DataError
from allformer.train.pictures.composed import Composed
from allformer.train.pictures.data import PictureData
from allformer.train.sections.section import Count, Section, share

_RANGE = Rule(
    lambda x: len(x) == 2 and 0 < x[0] <= x[1], "must be [smallest, largest]", "try [0.5, 2.0]"
)
_PAIR = Rule(lambda x: len(x) == 2, "must be two numbers", "try [64, 64]")


@dataclass(frozen=True)
class SceneData(Section, section="data.scenes"):
    """So many scenes to train on, and for validation; each of a canvas with some objects."""

    count: Count = 20_000
    validation: Count = 2_000
    canvas: Annotated[tuple[Count, ...], _PAIR] = (64, 64)
    objects: Annotated[tuple[Count, ...], _PAIR] = (2, 5)

    def of(self, pictures: Pictures, seed: int, held: bool) -> Composed:
        """Scenes of labelled pictures."""
        count = self.validation if held else self.count
        canvas, objects = (self.canvas[0], self.canvas[1]), (self.objects[0], self.objects[1])
        return Composed(pictures, count, canvas, objects, 2 * seed + held)


@dataclass(frozen=True)
class MapData(PictureData, section="data"):
    """Pictures with maps. Mirrored with the probability `flip`, made larger or smaller by `scale`;
    with `scenes`, the pictures are composed first."""

    flip: Annotated[float, share("0.5", whole=True)] = 0.5
    scale: Annotated[tuple[float, ...], _RANGE] = (1.0, 1.0)
    scenes: SceneData | None = None

    def _splits(self) -> dict[str, Pictures]:
        if self.path is None or self.format != "auto" or self.scenes is not None:
            return super()._splits()
        path = Path(self.path)
        if has_segments(path):
            return open_pictures(path, "panoptic")
        return open_pictures(path, "maps") if has_maps(path) else super()._splits()

    def opened(self, corpus: Any = None, seed: int = 0) -> tuple[Pictures, Pictures]:
        train, held = super().opened(corpus, seed)
        if self.scenes is None:
            return train, held
        for part in (train, held):
            if part.pixels is None:
                raise DataError(
                    f"data.scenes composes pictures of one size with a label each (idx), but "
                    f"{self.path} has files of many; leave data.scenes out"
                )
        return self.scenes.of(train, seed, held=False), self.scenes.of(held, seed, held=True)

    def unmoved(self) -> MapData:
        """The same, nothing left to chance."""
        return replace(self, flip=0.0, scale=(1.0, 1.0))
