"""COCO's panoptic layout: a JSON file of segments, and a PNG for each image whose colours are their
numbers (red + 256 · green + 256² · blue; 0: nothing is known).

    annotations/panoptic_train2017.json  annotations/panoptic_train2017/a.png  train2017/a.jpg
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.areas import Areas, Mapped
from allformer.data.pictures.open import reads
from allformer.data.pictures.picture import Array, Pictures
from allformer.errors import DataError
from allformer.images.read import read_image
from allformer.json_file import read_object

BEGIN = "panoptic_"


@dataclass(frozen=True, eq=False)
class PanopticPictures:
    """One split: images, and of each the segments that the file names."""

    folder: Path
    maps: Path
    rows: tuple[dict[str, Any], ...]
    labels: tuple[str, ...]
    number: dict[int, int]  # of a category among the labels
    counted: frozenset[int]  # categories of things
    pixels: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Mapped:
        row = self.rows[index]
        image = self.folder / (Path(row["file_name"]).stem + ".jpg")
        return Mapped(image, name=image.name, areas=partial(self.areas, row))

    def areas(self, row: dict[str, Any]) -> Areas:
        """The segments of an image; crowds, which nobody tells apart, do not count."""
        path = self.maps / row["file_name"]
        pixels = np.asarray(read_image(path)).astype(np.int64)
        codes = pixels @ np.array([1, 256, 256**2])
        told = [one for one in row["segments_info"] if not one.get("iscrowd")]
        known, places = np.unique(codes, return_inverse=True)
        table = np.full(len(known), -1, np.int32)
        for number, one in enumerate(told):
            table[known == one["id"]] = number
        kinds = [one["category_id"] for one in told]
        return Areas(
            table[places.reshape(codes.shape)],
            np.array([self.number[kind] for kind in kinds], np.int64),
            np.array([kind in self.counted for kind in kinds], bool),
        )


def _files(path: Path) -> dict[str, Path]:
    """The JSON file of each split."""
    inside = path / "annotations" if (path / "annotations").is_dir() else path
    found = sorted(inside.glob(f"{BEGIN}*.json")) if path.is_dir() else []
    starts = {"train": f"{BEGIN}train", "val": f"{BEGIN}val", "test": f"{BEGIN}test"}
    return {
        split: next(x for x in found if x.name.startswith(start))
        for split, start in starts.items()
        if any(x.name.startswith(start) for x in found)
    }


def has_segments(path: Path) -> bool:
    """Whether a folder has a file of segments."""
    return bool(_files(path))


@reads("panoptic", knows=has_segments)
def read_panoptic(path: Path) -> dict[str, Pictures]:
    """The splits that are there."""
    return {split: _split(path, file) for split, file in _files(path).items()}


def _split(path: Path, file: Path) -> PanopticPictures:
    raw = read_object(file, DataError)
    for field in ("annotations", "categories"):
        if not isinstance(raw.get(field), list):
            raise DataError(f"{file} has no list {field!r}; give a panoptic_….json of COCO")
    kinds = sorted(raw["categories"], key=lambda kind: kind["id"])
    name = file.stem.removeprefix(BEGIN)
    places = [path / name, path / "images" / name, path.parent / "images" / name]
    folder = next((x for x in places if x.is_dir()), None)
    if folder is None:
        raise DataError(f"{places[0]} is not there: the images of {file.name}; put them there")
    return PanopticPictures(
        folder,
        file.with_suffix(""),
        tuple(raw["annotations"]),
        tuple(str(kind["name"]) for kind in kinds),
        {int(kind["id"]): i for i, kind in enumerate(kinds)},
        frozenset(int(kind["id"]) for kind in kinds if kind.get("isthing")),
    )
