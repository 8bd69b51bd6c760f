"""Learning rates: a linear warm-up to the peak, then one of five ways on.

    schedule = Schedule.read({"kind": "cosine", "warmup": 100, "floor": 0.1})
    schedule.rate(step, peak=3e-4, total=10_000)

Steps count from 1, the last one is `total`: the first step has peak / warmup, not 0. transformers'
`get_*_schedule` count from 0, so that their first step changes nothing; their value after n calls
of `scheduler.step()` is ours of step n. Past `total` the last rate stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from allformer.config.check import Rule
from allformer.train.sections.section import Fraction, Section

Warmup = Annotated[
    int | float,
    Rule(
        lambda x: 0 <= x < 1 or (x >= 0 and x == int(x)),
        "must be a whole number of at least 0, or a share of the steps below 1",
        "try 100, or 0.06",
    ),
]
Share = Annotated[float, Rule(lambda x: 0 < x <= 1, "must be greater than 0, at most 1", "try 0.2")]


@dataclass(frozen=True)
class Schedule(Section, section="schedule", key="kind", default="inverse-sqrt"):
    """How the rate goes; `warmup` is the steps in which it rises, or below 1 their share of all."""

    warmup: Warmup = 1000

    def risen(self, total: int) -> int:
        """The step at which the warm-up ends: `Cosine(0.06).risen(1000)` → 60."""
        return round(self.warmup * total) if self.warmup < 1 else int(self.warmup)

    def rate(self, step: int, peak: float, total: int) -> float:
        """The rate of step 1, 2, …, `total`: `Cosine(100).rate(50, 1e-3, 1000)` → 5e-4."""
        warmup = self.risen(total)
        if step < warmup:
            return peak * step / warmup
        return peak * self.after(step, total)

    def after(self, step: int, total: int) -> float:
        """The share of the peak once the warm-up is over."""
        raise NotImplementedError

    def done(self, step: int, total: int) -> float:
        """0 at the end of the warm-up, 1 at the last step and after.

        Without one the first step has the peak: it may be the only one.
        """
        warmup = max(1, self.risen(total))
        return min(1.0, (step - warmup) / max(1, total - warmup))


@dataclass(frozen=True)
class InverseSqrt(Schedule, named="inverse-sqrt"):
    """√(warmup/step): the paper's d^−½ · min(step^−½, step·warmup^−1.5) for peak = (d·warmup)^−½.

    transformers' has another time scale of 10,000 where warmup is 0; ours is then 1/√step.
    """

    def after(self, step: int, total: int) -> float:
        return math.sqrt(max(1, self.risen(total)) / step)


@dataclass(frozen=True)
class Cosine(Schedule, named="cosine"):
    """Half a cosine down to `floor` · peak at the last step (SGDR without restarts)."""

    floor: Fraction = 0.0

    def after(self, step: int, total: int) -> float:
        half = 0.5 * (1 + math.cos(math.pi * self.done(step, total)))
        return self.floor + (1 - self.floor) * half


@dataclass(frozen=True)
class Linear(Schedule, named="linear"):
    """A straight line down to `floor` · peak at the last step (BERT's)."""

    floor: Fraction = 0.0

    def after(self, step: int, total: int) -> float:
        return self.floor + (1 - self.floor) * (1 - self.done(step, total))


@dataclass(frozen=True)
class Constant(Schedule, named="constant"):
    """The peak, to the end."""

    def after(self, step: int, total: int) -> float:
        return 1.0


@dataclass(frozen=True)
class WarmupStableDecay(Schedule, named="wsd"):
    """The peak, then down to `floor` · peak in the last `decay` share of the steps.

    `shape` is a straight line, or 1 − √x, which falls faster at first (Hägele et al., 2024). The
    share is rounded to whole steps and leaves the warm-up alone. transformers' `get_wsd_schedule`
    takes a number of steps, and with a floor its warm-up begins there; ours begins at 0.
    """

    floor: Fraction = 0.0
    decay: Share = 0.2
    shape: Literal["linear", "1-sqrt"] = "linear"

    def after(self, step: int, total: int) -> float:
        start = max(self.risen(total), total - round(self.decay * total))
        if step <= start:
            return 1.0
        done = min(1.0, (step - start) / max(1, total - start))
        fallen = done if self.shape == "linear" else math.sqrt(done)
        return self.floor + (1 - self.floor) * (1 - fallen)
