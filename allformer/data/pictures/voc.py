"""Pascal VOC's layout: JPEGImages, Annotations (an XML file each), ImageSets, SegmentationObject.

train = Voc("VOCdevkit/VOC2012", "train")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from allformer.data.pictures.open import SPLITS, reads
from allformer.data.pictures.outlines import Outlines, as_boxes
from allformer.data.pictures.picture import Picture, Pictures
from allformer.errors import DataError
from allformer.images.pillow import pillow

VOC_NAMES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
BORDER = 255  # around objects, in the pictures of masks


class Voc:
    """The images that `ImageSets/Main/PART.txt` names, with the objects of their XML files.

    Objects that are `difficult` count as crowds do: no model is asked for them. Where there is a
    picture of masks (`SegmentationObject`), its n-th value is the n-th object of the XML file.
    """

    pixels = None

    def __init__(
        self, folder: str | Path, part: str = "train", labels: tuple[str, ...] = VOC_NAMES
    ) -> None:
        self.folder, self.labels = Path(folder), labels
        listed = self.folder / "ImageSets" / "Main" / f"{part}.txt"
        try:
            lines = listed.read_text(encoding="utf-8").split("\n")
        except OSError as fault:
            raise DataError(f"{listed}: {fault.strerror}; give the folder that has it") from None
        self.stems = tuple(line.split()[0] for line in lines if line.strip())

    def __len__(self) -> int:
        return len(self.stems)

    def __getitem__(self, index: int) -> Picture:
        stem = self.stems[index]
        path = self.folder / "Annotations" / f"{stem}.xml"
        root = read_xml(path)
        objects = root.findall("object")
        name = root.findtext("filename") or f"{stem}.jpg"
        return Picture(
            self.folder / "JPEGImages" / Path(name).name,
            boxes=as_boxes([_corners(x, path) for x in objects]),
            classes=np.array(
                [self._class(_text(x, "name", path), path) for x in objects], np.int64
            ),
            masks=self._masks(stem, len(objects)),
            name=name,
            crowd=np.array([(x.findtext("difficult") or "0") == "1" for x in objects], bool),
        )

    def _class(self, name: str, path: Path) -> int:
        if name not in self.labels:
            raise DataError(
                f"{path} has an object {name!r}, which is none of {', '.join(self.labels)}; "
                f"give labels=(…)"
            )
        return self.labels.index(name)

    def _masks(self, stem: str, count: int) -> Any:
        path = self.folder / "SegmentationObject" / f"{stem}.png"
        if not path.is_file():
            return None
        with pillow().open(path) as image:
            numbers = np.asarray(image)
        most = int(numbers[numbers != BORDER].max(initial=0))
        if most > count:
            raise DataError(f"{path} has {most} objects, its XML file {count}; check both")
        height, width = numbers.shape
        return Outlines([numbers == n for n in range(1, count + 1)], (height, width))


def _lists(path: Path) -> list[Path]:
    return sorted((path / "ImageSets" / "Main").glob("*.txt"))


@reads("voc", knows=lambda path: (path / "Annotations").is_dir() and bool(_lists(path)))
def read_voc(path: Path) -> dict[str, Pictures]:
    """The parts that `ImageSets/Main` lists as train, val and test."""
    return {x.stem: Voc(path, x.stem) for x in _lists(path) if x.stem in SPLITS}


def read_xml(path: Path) -> Any:
    """The root of an XML file; one that defines entities is refused: they may fill the memory."""
    try:
        text = path.read_bytes()
    except OSError as fault:
        raise DataError(f"{path}: {fault.strerror}; check the folder") from None
    if b"<!ENTITY" in text:
        raise DataError(f"{path} defines entities, which no annotation needs; check the file")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as fault:
        raise DataError(f"{path} is no XML ({fault}); get it again") from None


def _corners(item: Any, path: Path) -> tuple[float, ...]:
    """Pixels are counted from 1 there, and the last one belongs to the box."""
    left, top, right, below = (
        float(_text(item, f"bndbox/{edge}", path)) for edge in ("xmin", "ymin", "xmax", "ymax")
    )
    return left - 1, top - 1, right, below


def _text(item: Any, tag: str, path: Path) -> str:
    found = item.findtext(tag)
    if found is None:
        raise DataError(f"{path} has no {tag}; check the file")
    return str(found).strip()
