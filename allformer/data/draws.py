"""Random numbers by name: what a row gets depends on no other row, and on no batch.

>>> draws = Draws(seed, epoch)
>>> draws(rows, places)          # for each token of a batch, a number in 0 … 1

Numbers come from a hash of (seed, epoch, …), the row and the place in it, so that they are the same
however rows are put into batches, on however many machines, and in whatever order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
_STEP = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: neighbours come to lie far apart


class Draws:
    """Of one epoch (or of whatever the numbers given are): `Draws(0, 1)([5, 5], [0, 1])`."""

    def __init__(self, *seed: int) -> None:
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]

    def __call__(self, row: npt.ArrayLike, place: npt.ArrayLike = 0, kind: int = 0) -> Numbers:
        """Evenly from 0 up to 1; `kind` tells apart several numbers for one place."""
        with np.errstate(over="ignore"):
            x = _mixed(self._key + np.uint64(kind + 1) * _STEP)
            for name in (row, place):
                x = _mixed((x ^ np.asarray(name).astype(np.uint64)) + _STEP)
        return np.asarray((x >> np.uint64(11)) * 2.0**-53)


def _mixed(x: Any) -> Any:
    """SplitMix64's last step (Steele et al. 2014): every bit of x touches every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
