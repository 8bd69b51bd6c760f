"""When the loss is no longer a number: say which step, which tensors, and what to try."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from allformer.errors import TrainingError
from allformer.train.step import Stepper
from allformer.train.watch.extremes import Extreme, look_again
from allformer.train.window import Taken


def explain_nonfinite(
    stepper: Stepper, bad: Taken, rate: float, kept: Path | None = None
) -> TrainingError:
    """Take the step's batches again, listening, and put what was found into words."""
    look = look_again(stepper, bad.batches, bad.random)
    weights, gradients = _bad(look.weights), _bad(look.gradients)
    lines = [
        f"the loss or its gradient is not finite at step {bad.step} (learning rate {rate:.3g}); "
        f"the weights were left as they were before it"
    ]
    if weights:
        lines.append(f"  weights that are not finite: {_some(weights)}")
    if (first := look.first_bad) is not None:
        found = f"{first.name} {first.shape}, largest finite value {first.largest:.3g}"
        lines.append(f"  first value that is not finite: {found}")
    if gradients:
        lines.append(f"  gradients that are not finite: {_some(gradients)}")
    if not (weights or first or gradients):
        lines.append(
            "  the same batch is finite when it is taken again: the numbers are at the edge"
        )
    if kept is not None:
        lines.append(f"  the batch is kept; every layer's extremes: allformer replay {kept}")
    lines.append(
        "  try: a lower optim.rate, a longer schedule.warmup, a smaller optim.clip, "
        "model.norm_at=pre, or train.precision=fp32; then --resume goes on from the last checkpoint"
    )
    return TrainingError("\n".join(lines))


def diverged(nll: float, rows: Sequence[Mapping[str, Any]], choices: int) -> Iterator[str]:
    """A line if a run has learnt less than nothing: `choices` answers as likely as each other."""
    chance = math.log(choices)
    trained = [row["nll"] for row in rows if "nll" in row]
    if min([nll, *trained[-1:]]) > 2 * chance:
        yield (
            f"the run has diverged: validation nll {nll:.3g} is far worse than guessing "
            f"({chance:.3g}); try a lower optim.rate or a longer schedule.warmup"
        )


def _bad(found: Iterable[Extreme]) -> list[str]:
    return [x.name for x in found if x.bad]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
