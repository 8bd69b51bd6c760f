"""The share that is right."""

from __future__ import annotations

from typing import Any

from allformer.metrics.pairs import pairs


def accuracy(wanted: Any, given: Any) -> float:
    """`accuracy([0, 1, 2], [0, 1, 1])` → 0.667; of two dimensions, a row counts when all is right.

    The second is scikit-learn's subset accuracy, for several labels at once.
    """
    a, b = pairs(wanted, given, "accuracy")
    right = a == b
    return float(right.reshape(len(right), -1).all(axis=1).mean())
