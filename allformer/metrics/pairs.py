"""What was wanted beside what was given, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from allformer.errors import DataError


def pairs(wanted: Any, given: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays of one shape with something in them."""
    a, b = np.asarray(wanted), np.asarray(given)
    if a.shape != b.shape:
        raise DataError(
            f"{what}: wanted has shape {a.shape} and given {b.shape}; give one for each other"
        )
    if not a.size:
        raise DataError(f"{what} of nothing is not defined; give at least one pair")
    return a, b
