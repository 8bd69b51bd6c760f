"""Which pixels are an object's, as files say it: masks, polygons, run-length codes; and boxes.

Legend: N objects, H W height and width of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from allformer.data.pictures.picture import Array
from allformer.errors import DataError


class Outlines:
    """The masks of a picture's objects, made when they are asked for: `np.asarray(outlines)` is
    N H W, bool; `outlines[i]` one of them."""

    dtype = np.dtype(bool)

    def __init__(self, said: Sequence[Any], size: tuple[int, int]) -> None:
        self.said, self.size = tuple(said), size

    @property
    def shape(self) -> tuple[int, int, int]:
        """N H W."""
        return (len(self.said), *self.size)

    def __len__(self) -> int:
        return len(self.said)

    def __getitem__(self, index: int) -> Array:
        return mask_of(self.said[index], self.size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = np.zeros(self.shape, bool)
        for i in range(len(self)):
            found[i] = self[i]
        return found if dtype is None else found.astype(dtype)


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
    return np.asarray(masks.decode([code])[..., 0], bool)


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
    """The box around a mask's pixels: left, top, right, below; the last two lie behind them."""
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
