"""Losses that jump: far above what the last steps had."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

SEEN, FIRST = 50, 20  # steps that say what is usual, and how many of them are enough
_TO_DEVIATION = 1.4826  # of a normal distribution: the median distance from the median, to σ


class Spikes:
    """`spikes.jump(loss)` → how many deviations above the running median, where that is too many.

    Median and median distance: one that jumped does not hide the next.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.losses: deque[float] = deque(maxlen=SEEN)

    def jump(self, loss: float) -> float | None:
        """None: as usual, or too early to say."""
        found = None
        if self.limit and len(self.losses) >= FIRST:
            middle = statistics.median(self.losses)
            usual = statistics.median(abs(x - middle) for x in self.losses) * _TO_DEVIATION
            far = (loss - middle) / max(usual, 1e-4 * abs(middle), 1e-12)
            found = far if far > self.limit else None
        self.losses.append(loss)
        return found

    def restore(self, losses: Iterable[float]) -> None:
        """Go on from what a checkpoint kept."""
        self.losses.extend(losses)
