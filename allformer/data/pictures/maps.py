"""Maps beside images: a PNG of classes for each picture, as VOC, ADE20K and many others have them.

    VOC     JPEGImages/a.jpg  SegmentationClass/a.png  ImageSets/Segmentation/train.txt
    ADE20K  images/training/a.jpg  annotations/training/a.png  objectInfo150.txt
    others  images/train/a.jpg  masks/train/a.png  classes.txt (or a YAML file with `classes`)

A map has a number for each pixel, grey or by a palette. In VOC's and in others 255 does not count,
in ADE20K's 0 does not. `classes.txt` names the numbers, one a line, from 0 on; a YAML file may
leave numbers out, and may say where images and masks are; what it calls unlabeled does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.areas import Areas, Mapped
from allformer.data.pictures.open import reads
from allformer.data.pictures.picture import Array, Pictures
from allformer.errors import DataError
from allformer.images.pillow import pillow
from allformer.images.read import ENDINGS

BORDER = 255  # of a map: does not count
NOTHING = ("unlabeled", "unlabelled", "void", "ignore")  # names of what does not count
VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip
ADE = {"train": "training", "val": "validation"}
NAMES = {"train": ("train", "training", "train2017"), "val": ("val", "validation", "val2017"),
         "test": ("test", "testing")}  # fmt: skip


@dataclass(frozen=True, eq=False)
class MappedPictures:
    """Files and their maps; `numbers` are those that maps have for `labels`, in order."""

    pairs: tuple[tuple[Path, Path], ...]
    labels: tuple[str, ...]
    numbers: tuple[int, ...]
    pixels: Array | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Mapped:
        image, path = self.pairs[index]
        return Mapped(image, name=image.name, areas=partial(self.areas, path))

    def areas(self, path: Path) -> Areas:
        """One class is one segment; a number that has no name does not count."""
        found = read_map(path)
        table = np.full(
            max(256, int(found.max()) + 1, *(n + 1 for n in self.numbers)), -1, np.int32
        )
        table[list(self.numbers)] = np.arange(len(self.numbers))
        return Areas(table[found], np.arange(len(self.numbers)))


def read_map(path: Path) -> Array:
    """The numbers of a map, H W: grey of 8 or 16 bits, or those of a palette."""
    library = pillow()
    try:
        with library.open(path) as image:
            found = np.asarray(image)
    except (OSError, library.DecompressionBombError) as fault:
        raise DataError(f"{path} is no map that can be read ({fault}); get it again") from None
    if found.ndim != 2 or found.dtype.kind not in "uib":
        raise DataError(
            f"{path} has {found.shape} numbers; a map has one for each pixel: grey, or a palette"
        )
    return found.astype(np.int64)


def _yaml(path: Path) -> Mapping[str, Any] | None:
    """The file that says where things are and what they are called, if there is one."""
    import yaml

    for name in ("config.yaml", "data.yaml", "classes.yaml"):
        if not (path / name).is_file():
            continue
        try:
            found = yaml.safe_load((path / name).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as fault:
            raise DataError(f"{path / name} is no YAML ({fault}); correct it") from None
        if isinstance(found, dict) and isinstance(found.get("classes"), dict):
            return found
    return None


def has_maps(path: Path) -> bool:
    """Whether a folder has maps of classes, whatever else it has."""
    voc = (path / "SegmentationClass").is_dir() and (path / "JPEGImages").is_dir()
    ade = (path / "annotations" / "training").is_dir() and (path / "images").is_dir()
    return path.is_dir() and (voc or ade or (path / "masks").is_dir())


# Others read VOC's folders too, for other purposes: who wants maps asks for them.
@reads("maps", knows=lambda path: has_maps(path) and not (path / "SegmentationClass").is_dir())
def read_maps(path: Path) -> dict[str, Pictures]:
    """The splits that are there."""
    if (path / "SegmentationClass").is_dir():
        return _voc(path)
    if (path / "annotations").is_dir():
        return _ade(path)
    said = _yaml(path)
    names = _named(path, said)
    splits: dict[str, Pictures] = {}
    for split, folders in NAMES.items():
        told = (said or {}).get(split)
        if isinstance(told, dict) and {"images", "masks"} <= set(told):
            where = path / str(told["images"]), path / str(told["masks"])
        else:
            name = next((x for x in folders if (path / "masks" / x).is_dir()), None)
            if name is None:
                continue
            where = path / "images" / name, path / "masks" / name
        splits[split] = _beside(*where, *names)
    if not splits:  # one folder of each
        splits["train"] = _beside(path / "images", path / "masks", *names)
    return splits


def _voc(path: Path) -> dict[str, Pictures]:
    splits: dict[str, Pictures] = {}
    for split in ("train", "val", "test"):
        listed = path / "ImageSets" / "Segmentation" / f"{split}.txt"
        if not listed.is_file():
            continue
        stems = [line.strip() for line in listed.read_text().splitlines() if line.strip()]
        pairs = [
            (path / "JPEGImages" / f"{x}.jpg", path / "SegmentationClass" / f"{x}.png")
            for x in stems
        ]
        if all(mask.is_file() for _, mask in pairs):
            splits[split] = MappedPictures(tuple(pairs), VOC, tuple(range(len(VOC))))
    return splits


def _ade(path: Path) -> dict[str, Pictures]:
    info = path / "objectInfo150.txt"
    if not info.is_file():
        raise DataError(f"{info} is not there, which names the classes; get the whole set")
    rows = [line.split("\t") for line in info.read_text().splitlines()[1:] if line.strip()]
    labels = tuple(row[-1].split(",")[0].strip() for row in rows)
    numbers = tuple(int(row[0]) for row in rows)  # from 1 on: 0 is what no one named
    return {
        split: _beside(path / "images" / name, path / "annotations" / name, labels, numbers)
        for split, name in ADE.items()
        if (path / "annotations" / name).is_dir()
    }


def _named(path: Path, said: Mapping[str, Any] | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The labels, and the numbers that stand for them."""
    if said is not None:
        named = ((int(n), str(name)) for n, name in said["classes"].items())
        pairs = sorted(pair for pair in named if pair[1].lower() not in NOTHING)
        return tuple(name for _, name in pairs), tuple(n for n, _ in pairs)
    file = path / "classes.txt"
    if not file.is_file():
        raise DataError(f"{file} is not there, which names the numbers of the maps, one a line")
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    names = tuple(line for line in lines if line)
    return names, tuple(range(len(names)))


def _beside(
    images: Path, masks: Path, labels: tuple[str, ...], numbers: tuple[int, ...]
) -> MappedPictures:
    """Each map with the image of its name; images without a map are left out."""
    if not images.is_dir() or not masks.is_dir():
        missing = masks if images.is_dir() else images
        raise DataError(f"{missing} is not there: maps lie beside images, in folders of one name")
    found = {x.stem: x for x in sorted(images.iterdir()) if x.suffix.lower() in ENDINGS}
    maps = [x for x in sorted(masks.iterdir()) if x.suffix.lower() == ".png"]
    if lost := [x.name for x in maps if x.stem not in found]:
        raise DataError(f"{masks / lost[0]} has no image of its name in {images}; add it")
    return MappedPictures(tuple((found[x.stem], x) for x in maps), labels, numbers)
