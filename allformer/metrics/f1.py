"""F1 of classes: the harmonic mean of precision and recall, 2 tp / (2 tp + fp + fn)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from allformer.metrics.pairs import pairs


class ClassF1(NamedTuple):
    """Over all decisions together, and the plain mean of the classes; 0 where there is nothing."""

    micro: float
    macro: float
    by_class: dict[Any, float]


def class_f1(wanted: Any, given: Any) -> ClassF1:
    """`class_f1([0, 1, 1], [0, 1, 0]).macro`; two dimensions of 0 and 1 are several labels at once.

    The classes are those that occur on either side, as in scikit-learn; with several labels, the
    columns. For one label each, micro F1 is the accuracy.
    """
    a, b = pairs(wanted, given, "F1")
    if a.ndim == 1:
        classes = np.unique(np.concatenate([a, b]))
        names = classes.tolist()
        a, b = a[:, None] == classes, b[:, None] == classes
    else:
        names = list(range(a.shape[1]))
        a, b = a.astype(bool), b.astype(bool)
    right, both = (a & b).sum(axis=0), a.sum(axis=0) + b.sum(axis=0)  # both = 2 tp + fp + fn
    each = 2 * right / np.maximum(both, 1)
    micro = 2 * right.sum() / max(int(both.sum()), 1)
    return ClassF1(float(micro), float(each.mean()), dict(zip(names, each.tolist(), strict=True)))
