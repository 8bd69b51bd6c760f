"""Do two lists of numbers rise together: Pearson of the values, Spearman of the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from allformer.metrics.pairs import pairs


def pearson(wanted: Any, given: Any) -> float:
    """`pearson([1, 2, 3], [1, 2, 4])` → 0.982; NaN where one side does not vary, as in scipy."""
    a, b = (x.astype(float) for x in pairs(wanted, given, "correlation"))
    if (a == a[0]).all() or (b == b[0]).all():  # their mean may be rounded: differences are not 0
        return float("nan")
    a, b = _unit(a), _unit(b)
    return float(np.clip((a * b).sum(), -1.0, 1.0))


def spearman(wanted: Any, given: Any) -> float:
    """`spearman([1, 2, 3], [1, 20, 300])` → 1.0; equal values share the mean of their ranks."""
    a, b = pairs(wanted, given, "correlation")
    return pearson(_ranks(a), _ranks(b))


def _unit(x: np.ndarray) -> np.ndarray:
    """Centred, of length 1; divided by its largest first, so that no square overflows."""
    x = x / np.abs(x).max()
    x = x - x.mean()
    unit: np.ndarray = x / np.linalg.norm(x)
    return unit


def _ranks(x: np.ndarray) -> np.ndarray:
    _, which, count = np.unique(x, return_inverse=True, return_counts=True)
    last: np.ndarray = np.cumsum(count)
    mean: np.ndarray = last - (count - 1) / 2
    return mean[which]
