"""A step's numbers again, with the least and the largest of each: where do they leave the range?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.taps import listen
from allformer.train.batch import Batch
from allformer.train.step import Stepper, weights


class Random(NamedTuple):
    """The state of torch's random numbers before a step."""

    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def now(cls, cuda: bool) -> Random:
        """As it is; both live on the host, so that nothing waits."""
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None)

    def put(self) -> None:
        """As it was."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.cuda)


class Extreme(NamedTuple):
    """One value: its name, its shape, the least and the largest number, and how many are none."""

    name: str
    shape: tuple[int, ...]
    low: float
    high: float
    bad: int = 0  # infinite, or not a number

    @property
    def largest(self) -> float:
        """The finite number that is furthest from 0."""
        return max(abs(self.low), abs(self.high))

    def __str__(self) -> str:
        bad = f", {self.bad:,} not finite" if self.bad else ""
        return f"{self.name} {self.shape}: {self.low:.4g} … {self.high:.4g}{bad}"


@dataclass(frozen=True)
class Look:
    """What a step was made of, each list in the order in which it was computed."""

    loss: float
    values: tuple[Extreme, ...]
    weights: tuple[Extreme, ...]
    gradients: tuple[Extreme, ...]

    @property
    def first_bad(self) -> Extreme | None:
        """The first value on the way to the loss that is not finite."""
        return next((x for x in self.values if x.bad), None)


@torch.no_grad()
def extreme(name: str, x: Tensor) -> Extreme:
    """`extreme("head.logits", logits)`"""
    finite = x.isfinite()
    bad = x.numel() - int(finite.sum())
    low, high = torch.aminmax(x.where(finite, 0) if bad else x) if x.numel() else (0.0, 0.0)
    return Extreme(name, tuple(x.shape), float(low), float(high), bad)


def look_again(stepper: Stepper, batches: Sequence[Batch], random: Random | None = None) -> Look:
    """Forward and backward of a step on its micro-batches; the weights stay as they are.

    With several micro-batches a name is met once for each: `decoder.0.feed.up` again and again.
    """
    model = stepper.model
    values: list[Extreme] = []

    def note(name: str, x: Tensor) -> None:
        if x.is_floating_point():
            values.append(extreme(name, x))

    if random is not None:
        random.put()
    counts = map(sum, zip(*map(stepper.objective.counts, batches), strict=True))
    weight = torch.tensor(weights(list(counts)), device=model.device)
    model.zero_grad(set_to_none=True)
    total = 0.0
    for batch in batches:
        with listen(note, exact=False):
            loss, _ = stepper.plain_loss(stepper.objective.onto(batch, model.device))
        mean = (loss.reshape(-1) * weight.to(loss.dtype)).sum()
        torch.autograd.backward(mean)
        values.append(extreme("loss", mean.detach()))
        total += float(mean.detach())
    named = list(model.named_parameters())
    gradients = _extremes((name, p.grad) for name, p in named)
    model.zero_grad(set_to_none=True)
    return Look(total, tuple(values), _extremes(named), gradients)


def _extremes(named: Iterable[tuple[str, Any]]) -> tuple[Extreme, ...]:
    return tuple(extreme(name, x.detach()) for name, x in named if x is not None)
