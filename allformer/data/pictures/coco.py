"""COCO's layout: one JSON file of images, categories and annotations, and a folder of images.

train = Coco("annotations/instances_train2017.json", "train2017")
train[0].masks
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.open import SPLITS, reads
from allformer.data.pictures.outlines import Outlines, as_boxes
from allformer.data.pictures.picture import Picture, Pictures
from allformer.errors import DataError
from allformer.json_file import read_object


class Coco:
    """Objects of an `instances_….json`; `categories` are the numbers that the file has for
    `labels`, in the same order, `image_ids` those of the images."""

    pixels = None

    def __init__(self, annotations: str | Path, images: str | Path) -> None:
        path = Path(annotations)
        raw = read_object(path, DataError)
        for field in ("images", "annotations", "categories"):
            if not isinstance(raw.get(field), list):
                raise DataError(f"{path} has no list {field!r}; give an instances_….json of COCO")
        kinds = sorted(raw["categories"], key=lambda kind: kind["id"])
        self.labels = tuple(str(kind["name"]) for kind in kinds)
        self.categories = tuple(int(kind["id"]) for kind in kinds)
        self._number = {category: i for i, category in enumerate(self.categories)}
        self.images = list(raw["images"])
        self.image_ids = tuple(int(image["id"]) for image in self.images)
        self.folder = Path(images)
        self._marks: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for mark in raw["annotations"]:
            if mark["category_id"] not in self._number:
                raise DataError(
                    f"{path}: annotation {mark.get('id')} has category_id={mark['category_id']}, "
                    f"which is none of its categories; check the file"
                )
            self._marks[int(mark["image_id"])].append(mark)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Picture:
        image = self.images[index]
        size = int(image["height"]), int(image["width"])
        marks = self._marks.get(int(image["id"]), [])
        corners = [(x, y, x + w, y + h) for x, y, w, h in (mark["bbox"] for mark in marks)]
        return Picture(
            self.folder / image["file_name"],
            boxes=as_boxes(corners),
            classes=np.array([self._number[mark["category_id"]] for mark in marks], np.int64),
            masks=_outlines(marks, size),
            name=str(image["file_name"]),
            crowd=np.array([bool(mark.get("iscrowd", 0)) for mark in marks], bool),
        )


def _outlines(marks: list[dict[str, Any]], size: tuple[int, int]) -> Any:
    """What the file says of masks; None: some object has none."""
    said = [mark.get("segmentation") for mark in marks]
    return None if any(outline is None for outline in said) else Outlines(said, size)


def _files(path: Path) -> list[Path]:
    folder = path / "annotations"
    return sorted((folder if folder.is_dir() else path).glob("instances_*.json"))


@reads("coco", knows=lambda path: path.is_dir() and bool(_files(path)))
def read_coco(path: Path) -> dict[str, Pictures]:
    """`annotations/instances_train2017.json` with the images of `train2017`, or `images/train2017`,
    and so on for val and test."""
    splits: dict[str, Pictures] = {}
    for file in _files(path):
        part = file.stem.removeprefix("instances_")
        name = next((split for split in SPLITS if part.startswith(split)), None)
        folders = [x for x in (path / part, path / "images" / part) if x.is_dir()]
        if name is not None:
            splits[name] = Coco(file, folders[0] if folders else path / "images")
    return splits
