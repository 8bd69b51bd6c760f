"""Learning rates: warm-up, then inverse square root (the paper) or a cosine down to zero."""

from __future__ import annotations

import math

SCHEDULES = ("inverse-sqrt", "cosine")


def learning_rate(step: int, *, peak: float, warmup: int, total: int, schedule: str) -> float:
    """The rate of step 1, 2, …: rises linearly to `peak` at `warmup`, then falls.

    inverse-sqrt: peak · min(step/warmup, √(warmup/step)), which is the paper's
    d^−½ · min(step^−½, step·warmup^−1.5) with peak = (d · warmup)^−½.
    """
    if step < warmup:
        return peak * step / warmup
    if schedule == "cosine":
        done = (step - warmup) / max(1, total - warmup)
        return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return peak * math.sqrt(max(1, warmup) / step)
