"""Statistics of weights, gradients and activations by layer, every so many steps.

RUN/statistics.jsonl: {"step": 100, "weights": {"decoder.0.attention": {"gradient": …, "rms": …,
"weight": …, "update": …}, …}, "activations": {"decoder.0.feed_added": {"mean": …, "std": …,
"max": …}, …}}

To look changes nothing: activations are of a run of the first micro-batch beside the step, and the
random numbers are put back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from allformer.core.taps import listen
from allformer.train.batch import Batch
from allformer.train.step import Result, Stepper
from allformer.train.watch.extremes import Random

FILE = "statistics.jsonl"
Figures = dict[str, dict[str, float]]
_LAYER = re.compile(r"^(\w+)\.layers\.(\d+)\.(\w+?)(_norm)?(\.|$)")


def group_of(parameter: str) -> str:
    """`decoder.layers.3.attention.qkv.weight` → `decoder.3.attention`; norms go with theirs."""
    if found := _LAYER.match(parameter):
        stack, number, part = found.group(1, 2, 3)
        return f"{stack}.{number}.{part}"
    return ".".join(parameter.split(".")[:2]) if "." in parameter else parameter


class Statistics:
    """Of one step: made before it, `row` after it."""

    def __init__(self, stepper: Stepper, step: int, batch: Batch) -> None:
        self.stepper, self.step = stepper, step
        self.activations = _activations(stepper, batch)
        # On the host: a second copy of the weights may not fit where the first one is.
        self.before = {name: _copy(p) for name, p in stepper.model.named_parameters()}

    def row(self, result: Result) -> dict[str, Any]:
        """All figures, plain: waits for the device."""
        named = dict(self.stepper.model.named_parameters())
        grads = {name: p.grad.detach() for name, p in named.items() if p.grad is not None}
        squares = {name: float(_whole(g).float().square().sum()) for name, g in grads.items()}
        # Clipping has shortened them all alike; the norm of before it is known.
        seen = sum(squares.values()) ** 0.5
        scale = float(result.norm) / seen if seen else 1.0
        groups: dict[str, list[str]] = {}
        for name in named:
            groups.setdefault(group_of(name), []).append(name)
        weights: Figures = {}
        for group, names in groups.items():
            size = sum(named[name].numel() for name in names)
            gradient = scale * sum(squares.get(name, 0.0) for name in names) ** 0.5
            weights[group] = {
                "gradient": gradient,
                "rms": gradient / size**0.5,
                **self._moved([(name, named[name]) for name in names]),
            }
        return {"step": self.step, "weights": weights, "activations": self.activations}

    def _moved(self, named: Sequence[tuple[str, Tensor]]) -> dict[str, float]:
        """How long the weights were, and how far of that they went."""
        length = sum(float(self.before[name].square().sum()) for name, _ in named) ** 0.5
        way = sum(float((_copy(p) - self.before[name]).square().sum()) for name, p in named) ** 0.5
        return {"weight": length, "update": way / length if length else 0.0}


def flat(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """For boards: `("activations.std/decoder.0.feed_added", 1.02)`."""
    for what in ("weights", "activations"):
        for place, figures in row[what].items():
            for name, value in figures.items():
                yield f"{what}.{name}/{place}", value


def _activations(stepper: Stepper, batch: Batch) -> Figures:
    found: Figures = {}

    def note(name: str, x: Tensor) -> None:
        if x.is_floating_point() and x.numel() > 1:
            wide = x.detach().float()
            std, mean = torch.std_mean(wide)
            found[name] = {"mean": mean, "std": std, "max": wide.abs().max()}  # type: ignore[dict-item]

    random = Random.now(stepper.on_gpu)
    with torch.no_grad(), listen(note, exact=False):
        stepper.plain_loss(stepper.objective.onto(batch, stepper.model.device))
    random.put()
    return {place: {name: float(x) for name, x in each.items()} for place, each in found.items()}


def _whole(x: Any) -> Tensor:
    """A tensor that several processes hold parts of, put together."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full


def _copy(p: Tensor) -> Tensor:
    return _whole(p.detach()).to("cpu", torch.float32, copy=True)
