"""Several rewards as one: a weighted sum, of which each part is known.

rewards = Rewards(read_rewards(["words.py:used", "runs/sentiment:positive"]))
rewards.open(device)
rewards(answered)            # R K: of each answer what each reward makes of it

Legend: R answers, K rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from allformer.errors import TrainingError
from allformer.train.policy.rewards.reward import Answered, Judge, Reward


class Rewards:
    """`names` are those of the figures, no two alike."""

    def __init__(self, sections: Sequence[Reward]) -> None:
        self.sections = tuple(sections)
        self.names = _apart([each.name or each.called for each in self.sections])
        self.judges: list[Judge] | None = None

    def check(self) -> None:
        """Refuse what cannot be found."""
        for each in self.sections:
            each.check()

    def open(self, device: torch.device) -> None:
        """Once: functions are imported, models read."""
        if self.judges is None:
            self.judges = [each.open(device) for each in self.sections]

    def __call__(self, answered: Sequence[Answered]) -> Tensor:
        """R K in fp64, on the CPU; what is no number for each answer is refused."""
        assert self.judges is not None
        columns = [
            _numbers(each, judge(answered), answered)
            for each, judge in zip(self.sections, self.judges, strict=True)
        ]
        return torch.tensor(columns, dtype=torch.float64).T.contiguous()

    def total(self, each: Tensor) -> Tensor:
        """The weighted sum: R K → R."""
        weights = torch.tensor([x.weight for x in self.sections], dtype=each.dtype)
        return each @ weights.to(each.device)


def _numbers(reward: Reward, given: Any, answered: Sequence[Answered]) -> list[float]:
    found = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TrainingError(
            f"{reward.told} gave a {type(given).__name__}; it must give a list with a number for "
            f"each of the {len(answered)} answers"
        )
    if len(found) != len(answered):
        raise TrainingError(
            f"{reward.told} gave {len(found)} numbers for {len(answered)} answers; it must give "
            f"one each, in their order"
        )
    for number, x in enumerate(found):
        if not isinstance(x, Real) or not math.isfinite(x):
            raise TrainingError(
                f"{reward.told} gave {x!r} for answer {number}, {_short(answered[number].answer)}; "
                f"it must be a finite number"
            )
    return [float(x) for x in found]


def _apart(names: list[str]) -> tuple[str, ...]:
    """No two alike: the second `used` is `used_2`."""
    found: list[str] = []
    for name in names:
        same = sum(other == name for other in names[: len(found)])
        found.append(f"{name}_{same + 1}" if same else name)
    return tuple(found)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
