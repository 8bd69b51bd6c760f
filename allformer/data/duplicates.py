"""Duplicated sequences: 0 w 0 w, where w is drawn anew each time (Kitaev et al. 2020, section 2).

>>> duplicates(1, length=3, symbols=127, seed=0)
array([[  0, 109,  81,  65,   0, 109,  81,  65]])

Nothing of the first half can be known and all of the second can: who says it looks back by exactly
length + 1 places, however far that is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def duplicates(rows: int, *, length: int = 511, symbols: int = 127, seed: Any = 0) -> Array:
    """So many rows of 2 · (length + 1) numbers: 0, w, 0, w, with w of 1 … symbols."""
    words = np.random.default_rng(seed).integers(1, symbols + 1, (rows, length))
    half = np.concatenate([np.zeros((rows, 1), words.dtype), words], 1)
    return np.concatenate([half, half], 1)
