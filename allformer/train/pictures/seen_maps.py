"""What a model says of each pixel beside what is true, for the report.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from allformer.images.thumbnail import NOTHING, label_map, thumbnail
from allformer.train.batch import Array
from allformer.train.predictions import Mask, Seen

BACKGROUND = "background"  # has no colour


def seen_maps(pixels: Array, wanted: Any, given: Any, labels: Sequence[str]) -> tuple[Seen, ...]:
    """Pictures (B C H W, bytes) with true and found labels of all pixels (B H W; below 0: none).

    `seen_maps(pixels, batch.maps, scores.argmax(1), labels)`. The score is the mean IoU of the
    labels that are there or were found. Of more labels than a map can number, none is shown.
    """
    if len(labels) > NOTHING:
        return ()
    names = tuple(labels)
    nothing = names.index(BACKGROUND) if BACKGROUND in names else -1
    rows = []
    for image, *maps in zip(pixels, _numbers(wanted), _numbers(given), strict=True):
        true, found = maps
        shown = [np.where((x < 0) | (x == nothing), NOTHING, x) for x in maps]
        masks = (Mask(label_map(x), names) for x in shown)
        grey = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        score = _mean_iou(true, found)
        rows.append(Seen(thumbnail(grey), score=score, mask=next(masks), found_mask=next(masks)))
    return tuple(rows)


def _numbers(maps: Any) -> Array:
    return np.asarray(maps.cpu() if hasattr(maps, "cpu") else maps).astype(np.int64)


def _mean_iou(true: Array, found: Array) -> float:
    counts = true >= 0
    both = [
        (true == k, (found == k) & counts) for k in np.unique(np.r_[true[counts], found[counts]])
    ]
    shares = [(a & b).sum() / max(1, (a | b).sum()) for a, b in both]
    return round(float(np.mean(shares)), 4) if shares else 0.0
