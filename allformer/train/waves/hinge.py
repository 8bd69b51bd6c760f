"""What judges and a generator learn from each other: hinge losses and features that match.

Each is of every crop, B, and a mean over judges and places (Défossez et al., 2022, section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.precision import widen
from allformer.train.waves.discriminator import Told


def judging(real: Sequence[Told], made: Sequence[Told]) -> Tensor:
    """The judges': scores of real sounds shall be above 1, of made ones below −1."""
    return _hinge(real, lambda x: 1 - x) + _hinge(made, lambda x: 1 + x)


def fooling(made: Sequence[Told]) -> Tensor:
    """The generator's: what it made shall score above 1."""
    return _hinge(made, lambda x: 1 - x)


def matching(real: Sequence[Told], made: Sequence[Told]) -> Tensor:
    """The mean absolute difference of the judges' layers, as a share of the mean absolute value
    that the real sound has there."""
    each = []
    for wanted, found in zip(real, made, strict=True):
        for one, other in zip(wanted.inner, found.inner, strict=True):
            one, other = widen(one.detach()), widen(other)
            size = _mean(one.abs()).clamp_min(1e-6)  # of the crop: no other changes it
            each.append(_mean((one - other).abs()) / size)
    return torch.stack(each).mean(0)


def _hinge(told: Sequence[Told], margin: Callable[[Tensor], Tensor]) -> Tensor:
    each = [_mean(F.relu(margin(widen(one.scores)))) for one in told]
    return torch.stack(each).mean(0)


def _mean(x: Tensor) -> Tensor:
    """Of each crop, B; whatever lies innermost in memory."""
    return x.mean(tuple(range(1, x.ndim)))
