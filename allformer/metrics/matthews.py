"""Matthews' correlation of classes: 1 right, 0 no better than chance, −1 all wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from allformer.metrics.pairs import pairs


def matthews(wanted: Any, given: Any) -> float:
    """`matthews([0, 1, 1, 1], [0, 1, 1, 0])` → 0.577; 0 where one side is of one class only.

    For more than two classes it is Gorodkin's R_K: the correlation of the two indicator matrices.
    """
    a, b = pairs(wanted, given, "Matthews correlation")
    classes = np.unique(np.concatenate([a, b]))
    x, y = (side[:, None] == classes for side in (a, b))
    x, y = (m - m.mean(axis=0) for m in (x.astype(float), y.astype(float)))
    below = np.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / below) if below else 0.0
