"""How fast each pair of features turns under rotary positions, in fp32 as published models do.

    plain: ω_i = θ^(−2i/D),   i = 0 … D/2 − 1

A scaling changes them for texts longer than those trained on; the order of operations is that of
transformers, to whose last bit they agree.

Legend: D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allformer import config


def frequencies(
    rotary: config.Rotary,
    size: int,
    device: torch.device | None = None,
    longest: Tensor | None = None,
) -> Tensor:
    """θ^(−2i/D), scaled: D/2. `longest`: the number of tokens of the longest text, of those that
    ask for it; without, as for one that is not too long."""
    steps = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    periods: Tensor = rotary.theta**steps
    scaling = rotary.scaling
    if scaling is None:
        return 1.0 / periods
    if longest is not None:
        assert isinstance(scaling, config.LongScaling | config.DynamicScaling)
        usual = frequencies(rotary, size, device)
        beyond = _BEYOND[type(scaling)](scaling, rotary.theta, steps, longest)
        return torch.where(longest > scaling.length, beyond, usual)
    return _SCALED[type(scaling)](scaling, rotary.theta, periods)


def gain(rotary: config.Rotary) -> float:
    """What turned queries and keys are multiplied by."""
    scaling = rotary.scaling
    if not isinstance(scaling, config.YarnScaling | config.LongScaling):
        return 1.0
    if scaling.gain is not None:
        return scaling.gain
    if scaling.factor <= 1:
        return 1.0
    if isinstance(scaling, config.YarnScaling):
        return 0.1 * math.log(scaling.factor) + 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.length))


def _linear(scaling: config.LinearScaling, theta: float, periods: Tensor) -> Tensor:
    return 1.0 / periods / scaling.factor


def _llama3(scaling: config.Llama3Scaling, theta: float, periods: Tensor) -> Tensor:
    plain = 1.0 / periods
    turns = scaling.length / (2 * math.pi / plain)  # within the length of pre-training
    slow = plain / scaling.factor
    ramp = (turns - scaling.low) / (scaling.high - scaling.low)
    ramped = (1 - ramp) * slow + ramp * plain
    return torch.where(turns > scaling.high, plain, torch.where(turns < scaling.low, slow, ramped))


def _yarn(scaling: config.YarnScaling, theta: float, periods: Tensor) -> Tensor:
    size = 2 * len(periods)

    def pair(turns: float) -> float:  # the i with ω_i · length = 2π · turns
        return size * math.log(scaling.length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(scaling.fast), pair(scaling.slow)
    if scaling.whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    if first == last:
        last += 0.001
    places = torch.arange(len(periods), dtype=torch.float32, device=periods.device)
    kept = 1 - ((places - first) / (last - first)).clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


def _short(scaling: config.LongScaling, theta: float, periods: Tensor) -> Tensor:
    return 1.0 / (periods.new_tensor(scaling.short) * periods)


def _long(scaling: config.LongScaling, theta: float, steps: Tensor, longest: Tensor) -> Tensor:
    return 1.0 / (steps.new_tensor(scaling.long) * theta**steps)


def _unscaled(scaling: config.DynamicScaling, theta: float, periods: Tensor) -> Tensor:
    return 1.0 / periods


def _dynamic(
    scaling: config.DynamicScaling, theta: float, steps: Tensor, longest: Tensor
) -> Tensor:
    size = 2 * len(steps)
    grown = (scaling.factor * longest / scaling.length) - (scaling.factor - 1)
    return 1.0 / ((theta * grown ** (size / (size - 2))) ** steps)


def _proportional(scaling: config.ProportionalScaling, theta: float, periods: Tensor) -> Tensor:
    turning = int(scaling.share * 2 * len(periods) // 2)
    still = torch.arange(len(periods), device=periods.device) >= turning
    return (1.0 / periods).masked_fill(still, 0.0) / scaling.factor


_SCALED: dict[type, Callable[[Any, float, Tensor], Tensor]] = {
    config.LinearScaling: _linear,
    config.Llama3Scaling: _llama3,
    config.YarnScaling: _yarn,
    config.LongScaling: _short,
    config.DynamicScaling: _unscaled,
    config.ProportionalScaling: _proportional,
}
_BEYOND: dict[type, Callable[[Any, float, Tensor, Tensor], Tensor]] = {
    config.LongScaling: _long,
    config.DynamicScaling: _dynamic,
}
