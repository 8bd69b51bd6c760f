"""The steps since the last report: their figures, and the first that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from allformer.train.batch import Batch
from allformer.train.step import Result


@dataclass(frozen=True)
class Taken:
    """One step, what it was taken on, and the random state before it (`watch.extremes.Random`)."""

    step: int
    result: Result
    batches: list[Any]
    random: Any = None


class Window:
    """Results stay on the device until they are asked for."""

    def __init__(self, terms: tuple[str, ...], scaled: bool) -> None:
        self.terms, self.scaled = terms, scaled
        self.taken: list[Taken] = []

    def add(self, step: int, result: Result, batches: list[Batch], random: Any = None) -> None:
        """One more step."""
        self.taken.append(Taken(step, result, batches, random))

    def clear(self) -> None:
        """It was reported."""
        self.taken.clear()

    def read(self) -> tuple[dict[str, float], Taken | None]:
        """Means over the window's labels, and the first step that cannot stand."""
        if (bad := self.first_bad()) is not None:
            return {}, bad
        results = [taken.result for taken in self.taken]
        losses = torch.stack([r.loss for r in results]).tolist()
        tokens = [r.tokens for r in results]
        row = {"loss": sum(a * n for a, n in zip(losses, tokens, strict=True)) / sum(tokens)}
        return row | self._nlls(results) | {"gradient_norm": float(results[-1].norm)}, None

    def first_bad(self) -> Taken | None:
        """The first step whose loss or gradient is not finite.

        With a loss scale, a gradient that overflows is met by a smaller scale, not by a stop.
        """
        if not self.taken:
            return None
        losses = torch.stack([taken.result.loss for taken in self.taken]).tolist()
        norms = torch.stack([taken.result.norm for taken in self.taken]).tolist()
        for taken, loss, norm in zip(self.taken, losses, norms, strict=True):
            if not (math.isfinite(loss) and (self.scaled or math.isfinite(norm))):
                return taken
        return None

    def _nlls(self, results: list[Result]) -> dict[str, float]:
        sums = torch.stack([r.nlls for r in results]).sum(0).tolist()
        counts = [sum(column) for column in zip(*(r.counts for r in results), strict=True)]
        means = [total / max(1, n) for total, n in zip(sums, counts, strict=True)]
        if len(means) == 1:
            return {"nll": means[0]}
        each = {f"nll_{name}": mean for name, mean in zip(self.terms, means, strict=True)}
        return {"nll": sum(means), **each}

    def glance(self) -> float:
        """The last step's NLL."""
        last = self.taken[-1].result
        nlls: list[float] = last.nlls.tolist()
        return sum(x / max(1, n) for x, n in zip(nlls, last.counts, strict=True))

    # --- across a checkpoint: the report after it is that of a run that never stopped -------------

    def state(self) -> list[tuple[Any, ...]]:
        """The steps that are not reported yet, without what they were taken on."""
        return [
            (t.step, *(x.detach().cpu() for x in (r.loss, r.nlls, r.norm)), r.counts, r.tokens)
            for t in self.taken
            for r in [t.result]
        ]

    def restore(self, state: Sequence[tuple[Any, ...]], device: torch.device) -> None:
        """Go on from what `state` gave."""
        for step, loss, nlls, norm, counts, tokens in state:
            kept = Result(loss.to(device), nlls.to(device), norm.to(device), tuple(counts), tokens)
            self.taken.append(Taken(step, kept, []))
