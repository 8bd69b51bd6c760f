"""Pictures as a row of patches: a module that takes images is asked about patches as about tokens.

Picture(3, 4).of(x)  # x: B N (C·p·p) → B C H W, patch t of the sequence at its place in the plane
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Picture:
    """How an image is cut: its channels, and the side of a square patch."""

    channels: int
    patch: int

    @property
    def width(self) -> int:
        """The numbers of one patch."""
        return self.channels * self.patch**2

    def of(self, x: Tensor) -> Tensor:
        """B C H W from B N (C·p·p), as square as N allows, row by row."""
        rows, number = x.shape[:2]
        down = next(n for n in range(int(number**0.5), 0, -1) if number % n == 0)
        x = x.reshape(rows, down, number // down, self.channels, self.patch, self.patch)
        x = x.permute(0, 3, 1, 4, 2, 5)  # B C h p w p
        return x.reshape(rows, self.channels, down * self.patch, -1)
