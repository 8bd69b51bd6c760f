"""YOLO's layout: a text file for each image, a line for each object, and a YAML file of names.

train = Yolo("object_detection/config.yaml", "train")

A line is a class and, as shares of width and height, the box's centre and size, or a polygon.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.open import reads
from allformer.data.pictures.outlines import Outlines, as_boxes
from allformer.data.pictures.picture import Picture, Pictures
from allformer.errors import DataError
from allformer.images.pillow import pillow
from allformer.images.read import ENDINGS


class Yolo:
    """The images of a part (`train`, `val`), their labels where `images` is `labels` in the path.

    An image without a label file has no objects, or is left out where the YAML file says
    `skip_if_label_file_missing`. Polygons are masks, and their boxes those around. `categories`
    are the numbers that the files have for `labels`, in the same order.
    """

    pixels = None

    def __init__(self, config: str | Path, part: str = "train") -> None:
        path = Path(config)
        said = _read_yaml(path)
        names = said.get("names")
        if isinstance(names, list):
            names = dict(enumerate(names))
        if not isinstance(names, dict) or not all(isinstance(i, int) for i in names):
            raise DataError(f"{path}: names must have a name for each number of a class; list them")
        self.categories = tuple(sorted(names))
        self.labels = tuple(str(names[i]) for i in self.categories)
        if not isinstance(said.get(part), str):
            raise DataError(f"{path} names no folder of images for {part!r}; add it")
        self.folder = path.parent / str(said.get("path") or "") / said[part]
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        labelled = bool(said.get("skip_if_label_file_missing"))
        self.paths = sorted(
            x for x in found
            if x.suffix.lower() in ENDINGS and not (labelled and not _label_path(x).is_file())
        )  # fmt: skip
        if not self.paths:
            raise DataError(f"{self.folder} has no images; check path and {part} in {path}")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Picture:
        path = self.paths[index]
        with pillow().open(path) as image:
            width, height = image.size
        rows = self._rows(_label_path(path))
        scale = np.array([width, height], np.float64)
        boxes: list[Any] = []
        polygons: list[Any] = []
        for numbers in rows:
            if len(numbers) == 5:
                centre, side = numbers[1:3] * scale, numbers[3:] * scale
                boxes.append((*(centre - side / 2), *(centre + side / 2)))
                continue
            points = numbers[1:].reshape(-1, 2) * scale
            boxes.append((*points.min(0), *points.max(0)))
            polygons.append([points.reshape(-1).tolist()])
        masks: Any = Outlines(polygons, (height, width)) if len(polygons) == len(rows) else None
        classes = np.array([self.categories.index(int(row[0])) for row in rows], np.int64)
        return Picture(path, boxes=as_boxes(boxes), classes=classes, masks=masks, name=path.name)

    def _rows(self, path: Path) -> list[Any]:
        """Its lines as numbers."""
        if not path.is_file():
            return []
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = np.array([float(x) for x in line.split()])
            except ValueError:
                row = np.zeros(0)
            polygon = len(row) >= 7 and len(row) % 2 == 1
            if not (len(row) == 5 or polygon) or row[0] not in self.categories:
                raise DataError(
                    f"{path}, line {number}: must be the number of a class and four numbers, or a "
                    f"polygon of at least three points; check it"
                )
            rows.append(row)
        return rows


def _label_path(path: Path) -> Path:
    """`images/train/1.jpg` → `labels/train/1.txt`: the last `images` of the path counts."""
    parts = list(path.parts)
    for i in reversed(range(len(parts) - 1)):
        if parts[i] == "images":
            parts[i] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise DataError(f"{path}: {fault.strerror}; give the YAML file of the set") from None
    except yaml.YAMLError as fault:
        raise DataError(f"{path} is no YAML: {fault}") from None
    if not isinstance(said, dict):
        raise DataError(f"{path} must say path, train, val and names; write them")
    return said


def _knows(path: Path) -> bool:
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    return {"names", "train"} <= set(_read_yaml(path))


@reads("yolo", knows=_knows)
def read_yolo(path: Path) -> dict[str, Pictures]:
    """The parts that a YAML file names folders for."""
    said = _read_yaml(path)
    return {part: Yolo(path, part) for part in ("train", "val", "test") if said.get(part)}
