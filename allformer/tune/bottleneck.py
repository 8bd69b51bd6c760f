"""Bottleneck adapters: two small matrices and a bend between them, beside or behind a sub-layer.

    neck(x) = scale · (act(x Dᵀ + d) Uᵀ + u)          D r × dim, U dim × r

- "houlsby" (Houlsby et al., 2019): h + neck(h) in the place of what each sub-layer gives.
- "pfeiffer" (Pfeiffer et al., 2020): behind the feed-forward layer alone, h + neck(norm(x + h)):
  what is read is the sum with the residual x, normed where the layer norms it (post-norm).
- "parallel" (He et al., 2021): beside the feed-forward layer, h + neck(y), where y is what that
  layer reads.

U and u start as zero, so that nothing is changed at first. Weights are held in fp32 at least, and
computed with in the dtype of their input. The layer's dropout comes behind the sum.

Legend: r size of the bottleneck.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.activation import ACT
from allformer.core.block import Block, Step
from allformer.core.dropout import drop
from allformer.core.matmul import matmul
from allformer.core.precision import cast
from allformer.errors import ConfigError, did_you_mean
from allformer.tune.deltas import device_of, wide_dtype
from allformer.tune.method import Method, register
from allformer.tune.slot import Names, Slot
from allformer.tune.tuning import Tuning

FORMS = ("houlsby", "pfeiffer", "parallel")
SCALE = {"parallel": 4.0}  # He et al., section 4.6
REDUCTION = 16  # of the width, where no size is given; as the `adapters` library has it


@register("bottleneck")
@dataclass(frozen=True)
class Bottleneck(Method):
    """`Bottleneck("houlsby", size=64)`; `act` is one of the core's activations."""

    form: str = "houlsby"
    size: int | None = None  # None: a sixteenth of the width
    act: str = "relu"
    scale: float | None = None  # None: 4 for "parallel", else 1
    dropout: float = 0.0  # of what the neck gives
    layers: tuple[int, ...] | None = None  # numbers of layers; None: all

    def __post_init__(self) -> None:
        _one_of("form", self.form, FORMS)
        _one_of("act", self.act, tuple(ACT))
        if self.size is not None and (not isinstance(self.size, int) or self.size < 1):
            raise ConfigError(
                f"Bottleneck.size={self.size!r} must be a whole number, 1 at least; try 64"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(
                f"Bottleneck.dropout={self.dropout!r} must be from 0 to below 1; try 0.1"
            )

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """A neck for each sub-layer that the form names, in the chosen layers of every stack."""
        found = False
        for name in model.config.stacks:
            stack = model.stack(name)
            self._check(stack, name)
            for i, block in enumerate(stack.layers):
                if self.layers is not None and i not in self.layers:
                    continue
                necks = Necks(self, block, stack.config.dim)
                necks.start(generator, device_of(block.feed))
                slot = tuning.slot(model, f"{name}.layers.{i}", "delta", Wraps)
                slot.add(adapter, self.name, necks)
                found = True
        if not found:
            raise ConfigError(
                f"Bottleneck.layers={self.layers} names no layer of this model; give numbers from "
                f"0 on, or None for all"
            )

    def _check(self, stack: Any, name: str) -> None:
        if self.form == "pfeiffer" and stack.flow is not None:
            raise ConfigError(
                f"Bottleneck.form='pfeiffer' reads the sum of a residual, and the layers of the "
                f"{name} are reversible: they have two; try form='houlsby'"
            )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"Bottleneck.{name}={value!r} is not known; {did_you_mean(value, known)}there is "
            f"{', '.join(known)}"
        )


class Neck(nn.Module):
    """One bottleneck: `neck(x)`, … dim → … dim."""

    decays = ("down", "up")

    def __init__(self, settings: Bottleneck, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        size = settings.size or max(dim // REDUCTION, 1)
        self.act, self.dropout = ACT[settings.act], settings.dropout
        scale = settings.scale
        self.scale = SCALE.get(settings.form, 1.0) if scale is None else scale
        self.down = nn.Parameter(torch.empty(size, dim, dtype=dtype))
        self.down_bias = nn.Parameter(torch.zeros(size, dtype=dtype))
        self.up = nn.Parameter(torch.zeros(dim, size, dtype=dtype))
        self.up_bias = nn.Parameter(torch.zeros(dim, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        low = self.act(matmul(x, cast(self.down, kind), cast(self.down_bias, kind)))
        y = matmul(low, cast(self.up, kind), cast(self.up_bias, kind))
        y = drop(y, self.dropout, self.training)
        return y if self.scale == 1.0 else y * self.scale


class Necks(nn.Module):
    """The bottlenecks of one layer, by the sub-layer that they are at: `necks.at["feed"]`."""

    def __init__(self, settings: Bottleneck, block: Block, dim: int) -> None:
        super().__init__()
        self.form, self.draws = settings.form, settings.dropout > 0
        names = ["attention", *(["cross"] if block.has_cross else []), "feed"]
        dtype = wide_dtype(block.feed)
        chosen = names if self.form == "houlsby" else ["feed"]
        self.at = nn.ModuleDict({name: Neck(settings, dim, dtype) for name in chosen})

    @torch.no_grad()
    def start(self, generator: torch.Generator, device: torch.device) -> None:
        """Fresh matrices, drawn on the CPU so that a seed means the same everywhere."""
        for neck in self.at.values():
            down: Any = neck.down
            bound = 1 / math.sqrt(down.shape[1])
            down.uniform_(-bound, bound, generator=generator)
        self.to(device)


class Wraps(Slot):
    """The bottlenecks of a block, by adapter; rows of a batch may have their own."""

    def wrap(self, block: Block, step: Step) -> Step:
        """The same sub-layer with what the chosen adapters add to it."""
        every = self._at(step, self.selection.every)
        if not every:
            return step
        forms = dict.fromkeys(form for form, _ in every)
        for form in forms:
            step = _wrapped(block, step, form, self._changes(step, form))
        return step

    def _at(self, step: Step, names: Names) -> list[tuple[str, nn.Module]]:
        """Form and neck of those adapters that have one at this sub-layer."""
        found: list[Any] = [x for x in self.of(names) if step.name in x.at]  # type: ignore[operator]
        return [(each.form, each.at[step.name]) for each in found]

    def _changes(self, step: Step, form: str) -> Callable[[Tensor, Tensor], Tensor]:
        """`add(h, x)`: h with what necks of this form make of x; one after the other in "houlsby",
        where each reads what the one before it gave."""

        def run(h: Tensor, x: Tensor | None, names: Names) -> Tensor:
            for kind, neck in self._at(step, names):
                if kind == form:
                    h = h + neck(h if x is None else x)
            return h

        def add(h: Tensor, x: Tensor) -> Tensor:
            read = None if form == "houlsby" else x
            if self.selection.rows is None:
                return run(h, read, self.selection.names)
            for names, rows in self.selection.groups(len(h), h.device):
                mine = None if read is None else read[rows]
                h = h.index_copy(0, rows, run(h[rows], mine, names))
            return h

        return add


def _wrapped(block: Block, step: Step, form: str, add: Callable[[Tensor, Tensor], Tensor]) -> Step:
    inner, before = step.work, step.late

    if form == "pfeiffer":

        def late(x: Tensor, h: Tensor) -> Tensor:
            h = h if before is None else before(x, h)
            return add(h, x + h if block.pre else step.norm(x + h))

        return step._replace(late=late)

    def work(x: Tensor) -> Tensor:
        h = inner(x)
        return add(h, x if x.shape == h.shape else x[:, : h.shape[1]])

    return step._replace(work=work)
