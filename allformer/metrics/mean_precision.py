"""Mean average precision of detections, by pycocotools: COCO's own definition and code."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError

Array = npt.NDArray[Any]


class Found(NamedTuple):
    """What a model finds on an image: corners N 4, classes N, scores N; perhaps masks N H W."""

    boxes: Array
    classes: Array
    scores: Array
    masks: Array | None = None


class There(NamedTuple):
    """What is on it; a crowd is neither asked for nor counted against who finds it."""

    boxes: Array
    classes: Array
    crowd: Array | None = None
    masks: Any = None


def can_judge() -> bool:
    """Whether pycocotools is installed."""
    return find_spec("pycocotools") is not None


def mean_precision(
    found: Sequence[Found], there: Sequence[There], classes: int, kind: str = "bbox"
) -> dict[str, float]:
    """`map` (the mean over IoU 0.50, 0.55 … 0.95), `map50`, `map75`, and `recall` with at most 100
    for each image; by boxes, or with `kind="segm"` by masks. A class that no image shows is left
    out of the means; where none is shown they are 0.

    >>> mean_precision([Found(boxes, classes, scores)], [There(boxes, classes)], classes=10)
    {'map': 1.0, 'map50': 1.0, 'map75': 1.0, 'recall': 1.0}
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise DataError(
            "mean average precision is computed by pycocotools; install it: pip install "
            "allformer[vision]"
        ) from None
    if not any(len(one.classes) for one in there) or not any(len(one.scores) for one in found):
        return dict.fromkeys(("map", "map50", "map75", "recall"), 0.0)
    with contextlib.redirect_stdout(io.StringIO()):  # it tells of every step
        truth = COCO()
        truth.dataset = _dataset(there, classes, kind)
        truth.createIndex()
        told = COCOeval(truth, truth.loadRes(_results(found, kind)), kind)
        told.evaluate()
        told.accumulate()
        told.summarize()
    names = {"map": 0, "map50": 1, "map75": 2, "recall": 8}
    return {name: max(0.0, float(told.stats[i])) for name, i in names.items()}


def _dataset(there: Sequence[There], classes: int, kind: str) -> dict[str, Any]:
    marks: list[dict[str, Any]] = []
    for image, one in enumerate(there, 1):
        crowd = np.zeros(len(one.classes), bool) if one.crowd is None else one.crowd
        for i, (box, number) in enumerate(zip(one.boxes, one.classes, strict=True)):
            x, y, width, height = _edges(box)
            mark = {
                "id": len(marks) + 1, "image_id": image, "category_id": int(number) + 1,
                "bbox": [x, y, width, height], "area": width * height, "iscrowd": int(crowd[i]),
            }  # fmt: skip
            if kind == "segm":
                mark["segmentation"] = _packed(one.masks[i])
                mark["area"] = float(np.asarray(one.masks[i]).sum())
            marks.append(mark)
    return {
        "info": {},
        "images": [{"id": i, **_size(one)} for i, one in enumerate(there, 1)],
        "annotations": marks,
        "categories": [{"id": number} for number in range(1, classes + 1)],
    }


def _size(one: There) -> dict[str, int]:
    """Of an image whose masks are compared."""
    if one.masks is None:
        return {}
    return {"height": int(one.masks.shape[1]), "width": int(one.masks.shape[2])}


def _results(found: Sequence[Found], kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for image, one in enumerate(found, 1):
        for i, (number, score) in enumerate(zip(one.classes, one.scores, strict=True)):
            row: dict[str, Any] = {"image_id": image, "score": float(score)}
            row["category_id"] = int(number) + 1
            if kind == "segm":
                assert one.masks is not None, "masks are compared: give them"
                row["segmentation"] = _packed(one.masks[i])
            else:
                row["bbox"] = list(_edges(one.boxes[i]))
            rows.append(row)
    return rows


def _edges(box: Array) -> tuple[float, float, float, float]:
    """Corners → left, top, width, height."""
    left, top, right, below = (float(x) for x in box)
    return left, top, right - left, below - top


def _packed(mask: Any) -> Any:
    from pycocotools import mask as masks

    code = masks.encode(np.asfortranarray(np.asarray(mask, np.uint8)))
    return {"size": code["size"], "counts": code["counts"].decode()}
