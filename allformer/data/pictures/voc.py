"""Pascal VOC's layout: JPEGImages, Annotations (an XML file each), ImageSets, SegmentationObject.

train = Voc("VOCdevkit/VOC2012", "train")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from allformer.data.pictures.objects import Array, Marked, MarkedSequence, Objects, as_boxes
from allformer.errors import DataError
from allformer.images.pillow import pillow

VOC_NAMES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
BORDER = 255  # around objects, in the pictures of masks


class Voc(MarkedSequence):
    """The images that `ImageSets/Main/PART.txt` names, with the objects of their XML files.

    Objects that are `difficult` count as crowds do: no model is asked for them. Where there is a
    picture of masks (`SegmentationObject`), its n-th value is the n-th object of the XML file.
    """

    def __init__(
        self, folder: str | Path, part: str = "train", names: tuple[str, ...] = VOC_NAMES
    ) -> None:
        self.folder, self.names = Path(folder), names
        listed = self.folder / "ImageSets" / "Main" / f"{part}.txt"
        try:
            lines = listed.read_text(encoding="utf-8").split("\n")
        except OSError as fault:
            raise DataError(f"{listed}: {fault.strerror}; give the folder that has it") from None
        self.stems = tuple(line.split()[0] for line in lines if line.strip())

    def __len__(self) -> int:
        return len(self.stems)

    def __getitem__(self, i: int) -> Marked:
        stem = self.stems[i]
        path = self.folder / "Annotations" / f"{stem}.xml"
        root = read_xml(path)
        size = tuple(int(_text(root, f"size/{edge}", path)) for edge in ("height", "width"))
        objects = root.findall("object")
        found = Objects(
            (size[0], size[1]),
            np.array([self._class(_text(x, "name", path), path) for x in objects], np.int64),
            as_boxes([_corners(x, path) for x in objects]),
            self._masks(stem, len(objects)),
            np.array([(x.findtext("difficult") or "0") == "1" for x in objects], bool),
        )
        name = root.findtext("filename") or f"{stem}.jpg"
        return Marked(self.folder / "JPEGImages" / Path(name).name, found, name)

    def _class(self, name: str, path: Path) -> int:
        if name not in self.names:
            raise DataError(
                f"{path} has an object {name!r}, which is none of {', '.join(self.names)}; "
                f"give names=(…)"
            )
        return self.names.index(name)

    def _masks(self, stem: str, count: int) -> tuple[Array, ...] | None:
        path = self.folder / "SegmentationObject" / f"{stem}.png"
        if not path.is_file():
            return None
        with pillow().open(path) as image:
            numbers = np.asarray(image)
        most = int(numbers[numbers != BORDER].max(initial=0))
        if most > count:
            raise DataError(f"{path} has {most} objects, its XML file {count}; check both")
        return tuple(numbers == number for number in range(1, count + 1))


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
