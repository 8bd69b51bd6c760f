"""What is on a picture: objects, each with its class, its box and, where it is known, its mask.

Legend: N objects, H W height and width of the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of one picture: `Objects((96, 96), classes, boxes)`.

    `boxes` are corners in pixels: left, top, right, below; the right and lower edges lie behind the
    last pixel, so that a box of one pixel has width 1. `outlines` are masks (H W, bool) or what a
    file says of them, as COCO does: polygons, or a run-length code. A `crowd` is many objects in
    one box, which no model is asked to tell apart.
    """

    size: tuple[int, int]
    classes: Array  # N, int64: numbers of the set's names
    boxes: Array  # N 4, float32
    outlines: tuple[Any, ...] | None = None
    crowd: Array | None = None  # N, bool

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def masks(self) -> Array:
        """Which pixels each object has, N H W, bool."""
        if self.outlines is None:
            raise DataError("these objects have boxes alone; give a set that has masks too")
        if not self.outlines:
            return np.zeros((0, *self.size), bool)
        return np.stack([mask_of(outline, self.size) for outline in self.outlines])

    @property
    def crowded(self) -> Array:
        """N, bool: nobody is, where nothing is said of it."""
        return np.zeros(len(self), bool) if self.crowd is None else self.crowd

    @property
    def centred(self) -> Array:
        """Boxes as models learn them, N 4: centre x, centre y, width, height, each from 0 to 1."""
        height, width = self.size
        low, high = self.boxes[:, :2], self.boxes[:, 2:]
        around = np.concatenate([(low + high) / 2, high - low], 1)
        shares: Array = (around / np.array([width, height] * 2)).astype(np.float32)
        return shares

    def only(self, keep: Array) -> Objects:
        """Those of them that `keep` (N bool, or numbers) names, in its order."""
        numbers = np.flatnonzero(keep) if keep.dtype == bool else keep
        outlines = None if self.outlines is None else tuple(self.outlines[i] for i in numbers)
        crowd = None if self.crowd is None else self.crowd[numbers]
        return Objects(self.size, self.classes[numbers], self.boxes[numbers], outlines, crowd)


@dataclass(frozen=True, eq=False)
class Marked:
    """A picture and the objects on it; `image` is a path or an array, H W (C), uint8."""

    image: Any
    objects: Objects
    name: str = ""


class MarkedSet(Protocol):
    """What all readers of objects give: a sequence of `Marked`, and the names of the classes."""

    names: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Marked: ...

    def __iter__(self) -> Iterator[Marked]: ...


class MarkedSequence:
    """A set by what `__len__` and `__getitem__` say."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> Marked:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Marked]:
        return (self[i] for i in range(len(self)))


def mask_of(outline: Any, size: tuple[int, int]) -> Array:
    """A mask H W, bool, of whatever says it: a mask, COCO's polygons or run-length code."""
    if isinstance(outline, np.ndarray):
        return outline.astype(bool)
    height, width = size
    if isinstance(outline, dict) and not isinstance(outline.get("counts"), str | bytes):
        return runs_to_mask(outline)
    masks = coco_masks()
    code = outline
    if not isinstance(outline, dict):
        if not outline:
            return np.zeros(size, bool)
        code = masks.merge(masks.frPyObjects(outline, height, width))
    return np.asarray(masks.decode(code), bool)


def runs_to_mask(code: dict[str, Any]) -> Array:
    """COCO's run-length code as plain numbers: runs of 0 and 1 in turn, column by column."""
    height, width = code["size"]
    runs = np.asarray(code["counts"], np.int64)
    if runs.sum() != height * width:
        raise DataError(
            f"a run-length code has {runs.sum()} pixels, but its size is {height} × {width}; "
            f"check the annotations"
        )
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def mask_to_runs(mask: Array) -> dict[str, Any]:
    """The inverse of `runs_to_mask`: `mask_to_runs(mask)["counts"]`."""
    flat = np.asarray(mask, bool).T.reshape(-1)
    edges = np.flatnonzero(np.diff(flat)) + 1
    bounds = np.concatenate([[0] if len(flat) and flat[0] else [], [0], edges, [len(flat)]])
    return {"size": list(mask.shape), "counts": np.diff(bounds).astype(int).tolist()}


def box_of(mask: Array) -> tuple[int, int, int, int]:
    """The box around a mask's pixels: left, top, right, below."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def as_boxes(rows: Sequence[Any]) -> Array:
    """N 4, float32, of none too."""
    return np.asarray(rows, np.float32).reshape(-1, 4)


def coco_masks() -> Any:
    """The module `pycocotools.mask`, or an error that says how to get it."""
    try:
        from pycocotools import mask
    except ImportError:
        raise DataError(
            "COCO's masks are read by pycocotools; install it: pip install allformer[vision]"
        ) from None
    return mask
