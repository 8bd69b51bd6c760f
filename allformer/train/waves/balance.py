"""Several losses of one wave, each of which pulls as hard as it is told.

    balance = Balance(("spectral", "wave", "fool", "match"), decay=0.99, device=device)
    pull = balance.joined({"spectral": (1.0, g1), "wave": (0.1, g2)}, keep)    # in the loss
    balance.settle()                                                         # after the step

What a loss weighs in training is how long its gradient is at the wave, and that depends on its
formula, on the loudness of the recordings and on how far training is. Divided by its mean length,
each weight says what it seems to say (Défossez et al., 2022, section 3.4). Lengths are means over
crops, and moving ones over steps; a step divides by those of the steps before it, so that a batch
cut in pieces is the whole one. A crop that pulls harder than the mean pulls as hard as that: one
soft crop with a loud answer would else outweigh all others of its batch.

Legend: B crops, S samples, L losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_LITTLE = 1e-12


class Balance:
    """`decay` None: gradients are weighed as they are."""

    def __init__(self, names: Sequence[str], decay: float | None, device: torch.device) -> None:
        self.names, self.decay = tuple(names), decay
        self.lengths = torch.zeros(len(self.names), device=device)  # L; 0: not met yet
        self._sums = torch.zeros_like(self.lengths)
        self._counts = torch.zeros_like(self.lengths)

    @torch.no_grad()
    def joined(self, given: Mapping[str, tuple[float, Tensor]], keep: Tensor) -> Tensor:
        """The sum B S of gradients B S by their weights, each of which is a loss's of its own crop;
        with a `decay`, divided by their mean lengths, or their own where these are longer."""
        total = torch.zeros_like(next(iter(given.values()))[1])
        for name, (weight, gradient) in given.items():
            total = total + weight * self._even(self.names.index(name), gradient, keep)
        return total

    def _even(self, i: int, gradient: Tensor, keep: Tensor) -> Tensor:
        if self.decay is None:
            return gradient
        lengths, count = gradient.norm(dim=1), keep.sum()
        total = (lengths * keep).sum()
        self._sums[i] += total
        self._counts[i] += count
        known = torch.where(self.lengths[i] > 0, self.lengths[i], total / count)
        return gradient / torch.maximum(lengths, known).clamp_min(_LITTLE)[:, None]

    @torch.no_grad()
    def settle(self) -> None:
        """The step is over: what it had joins the moving means."""
        if self.decay is None:
            return
        found = self._sums / self._counts.clamp_min(_LITTLE)
        moved = torch.where(self.lengths > 0, self.lengths.lerp(found, 1 - self.decay), found)
        self.lengths.copy_(torch.where(self._counts > 0, moved, self.lengths))
        self._sums.zero_()
        self._counts.zero_()

    def state(self) -> dict[str, Any]:
        """For `restore` after a resume."""
        return {"lengths": self.lengths}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.lengths.copy_(state["lengths"])
