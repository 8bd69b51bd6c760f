"""Figures of several steps as one mean, for a log that is not written at each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Running:
    """`running.add(reward=x)` at each step, `running.read()` at each report.

    Values stay on their device until they are read.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Tensor, int]] = {}
        self.last: dict[str, float] = {}  # of a figure that no step of a report had

    def add(self, **values: Tensor) -> None:
        """One step more."""
        for name, x in values.items():
            total, count = self.sums.get(name, (torch.zeros((), device=x.device), 0))
            self.sums[name] = total + x.detach().float(), count + 1

    def read(self) -> dict[str, float]:
        """Means since the last time."""
        self.last |= {name: float(total) / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return dict(self.last)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        sums = {name: [float(total), count] for name, (total, count) in self.sums.items()}
        return {"sums": sums, "last": dict(self.last)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        sums = state.get("sums", {})
        self.sums = {name: (torch.tensor(total), count) for name, (total, count) in sums.items()}
        self.last = dict(state.get("last", {}))
