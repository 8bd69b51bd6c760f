"""A window of a recording: 30 s that are heard together.

Legend: S vectors of the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

FRAMES = 3000  # of a window: 30 s
PER_SECOND = 100  # frames
STRIDE = 2  # frames from one timestamp to the next
STEP = 0.02  # the same in seconds


@dataclass(frozen=True)
class Window:
    """`size` frames from `seek` on; `memory` (1 S dim) is what the encoder made of them."""

    memory: Tensor
    seek: int
    size: int

    @property
    def start(self) -> float:
        """In seconds."""
        return self.seek / PER_SECOND

    @property
    def end(self) -> float:
        """Of a whole window, in seconds: that of a recording may come before."""
        return (self.seek + FRAMES) / PER_SECOND
