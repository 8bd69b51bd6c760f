"""One optimiser step: forward, backward, clip, update; compiled and replayed as one graph on a GPU.

Losses are summed over labels and divided once by the labels of the whole step (each term by its
own), so accumulating micro-batches of unequal length gives the full batch's gradient.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from allformer.core.fused import trains
from allformer.core.graph import Captured, copy_into, on_side_stream
from allformer.train.batch import Batch, mapped, tensors, uncounted
from allformer.train.ema import Ema
from allformer.train.float8 import use_float8
from allformer.train.objectives.objective import Objective
from allformer.train.optim import AdamW, Optim, clipped_step, make_optimizer
from allformer.train.parallel import ALONE, Ranks
from allformer.train.precision import find_precision

_WIDE = torch.float64


@dataclass(frozen=True)
class StepSettings:
    """What a step needs to know."""

    optim: Optim = field(default_factory=AdamW)
    smoothing: float = 0.1
    z_loss: float = 0.0
    precision: str = "fp32"
    compile: bool = False
    ema: float | None = None


@dataclass(frozen=True)
class Result:
    """Of one step, still on the device: reading it waits for it.

    `loss` is the mean that went down, a sum over the terms; `nlls` are the plain sums of each term
    over `counts` labels; `tokens` is what the batches say they hold.
    """

    loss: Tensor
    nlls: Tensor
    norm: Tensor
    counts: tuple[int, ...]
    tokens: int


class Stepper:
    """Owns the optimiser: `stepper(batches, rate)` does one step on a list of micro-batches."""

    def __init__(
        self,
        model: Any,
        objective: Objective[Any, Any],
        settings: StepSettings,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.objective, self.settings, self.ranks = model, objective, settings, ranks
        device = model.device
        self.on_gpu = device.type == "cuda"
        # A step that can be captured has its rate on the device, else it is a plain number.
        self.captures = self.on_gpu and settings.optim.captures and ranks.world == 1
        self.rate = torch.zeros((), device=device) if self.captures else None
        self.optimizer: Any = make_optimizer(
            settings.optim,
            model,
            lr=0.0 if self.rate is None else self.rate,
            capturable=self.captures,
        )
        precision = find_precision(settings.precision, device)
        self.precision, self.dtype = precision.name, precision.dtype
        self.scaler = precision.scaler(device)
        if precision.float8:
            use_float8(model)
        self.ema = None if settings.ema is None else Ema(model, settings.ema)
        objective.meet(model, self.captures)
        self.waits = waits = objective.waits
        # Where fused kernels do all between the matrix products, to capture them is enough: there
        # is nothing to wait for before the first step.
        compiled = settings.compile and not trains(device, self.dtype) and not waits
        compiled = compiled and objective.compiles
        self._loss = torch.compile(self.plain_loss, dynamic=False) if compiled else None
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._graphs: dict[Hashable, _Graph] = {}  # one for each form of a step
        self._last: _Graph | None = None

    def __call__(self, batches: Sequence[Batch], rate: float) -> Result:
        """One step on the micro-batches (already on the device)."""
        for group in self.optimizer.param_groups:
            if self.rate is None:
                group["lr"] = rate
        if self.rate is not None:
            self.rate.fill_(rate)
        each = [(batch.tokens, *self.objective.counts(batch)) for batch in batches]
        tokens, *counts = self.ranks.total(tuple(map(sum, zip(*each, strict=True))))
        if self._can_replay(batches):
            loss, nlls, norm = self._replay(batches[0], weights(counts))
        else:
            loss, nlls, norm = self._step(batches, torch.tensor(weights(counts), dtype=_WIDE))
        # Fused optimisers write without telling: what was made of the weights of before (by
        # `generate`, for its next call) would be taken for theirs.
        increment_version(self._trained)
        if self.ema is not None:
            self.ema.update()
        return Result(loss, nlls, norm, tuple(counts), tokens)

    def _step(self, batches: Sequence[Batch], weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        compute = self._loss or self.plain_loss

        def one(batch: Batch) -> tuple[Tensor, Tensor]:
            loss, nll = compute(uncounted(batch))
            return (loss.reshape(-1) * weight.to(loss)).sum(), nll

        loss, nlls = self.ranks.work(one, self._backward, batches, weight.numel())
        norm = self._update()
        self.objective.stepped(self.optimizer.param_groups[0]["lr"])
        return loss, nlls, norm

    def _backward(self, mean: Tensor) -> None:
        torch.autograd.backward(mean if self.scaler is None else self.scaler.scale(mean))

    def _update(self) -> Tensor:
        """Clip and step; a gradient that is not finite changes nothing."""
        optimizer, asked = self.optimizer, self.settings.optim
        if self.scaler is None:
            norm = self.ranks.norm(self.model)
            clipped_step(optimizer, asked, self.model.parameters(), norm)
            return norm
        self.scaler.unscale_(optimizer)
        norm = self.ranks.norm(self.model)
        if asked.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), asked.clip, norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return norm

    def plain_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The objective's, not compiled."""
        asked = self.settings
        more = {"z": asked.z_loss} if asked.z_loss else {}
        return self.objective.loss(
            self.model, batch, smoothing=asked.smoothing, dtype=self.dtype, **more
        )

    def load(self, state: dict[str, Any]) -> None:
        """Restore optimiser, loss scale and moving average from a checkpoint's state."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate  # loading put a copy there; the graph reads this one
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None and state.get("ema") is not None:
            self.ema.load_state_dict(state["ema"])

    # --- the whole step as one CUDA graph: a small model is limited by launching kernels ---------

    def _can_replay(self, batches: Sequence[Batch]) -> bool:
        wanted = self.captures and self.settings.compile and self.ranks.world == 1
        wanted = wanted and not self.waits
        return wanted and self.scaler is None and len(batches) == 1

    def _replay(self, batch: Batch, weight: list[float]) -> tuple[Tensor, Tensor, Tensor]:
        form = self.objective.form
        if form not in self._graphs:
            self._graphs[form] = _Graph(self, batch, len(weight))
        graph = self._graphs[form]
        if self._last is not graph:
            graph.take_gradients()
            self._last = graph
        return graph(batch, weight)


def weights(counts: Sequence[int]) -> list[float]:
    """What each term's sum is multiplied by to be a mean; one over no labels is 0."""
    return [1.0 / count if count else 0.0 for count in counts]


class _Graph:
    """The step of one size of batch: plainly at first, then captured and replayed."""

    _WARMUP = 3  # steps run plainly first: compilation, optimiser state, library handles

    def __init__(self, stepper: Stepper, batch: Batch, terms: int) -> None:
        self.stepper = stepper
        device = stepper.model.device
        self.batch = mapped(batch, lambda x: x.to(device, copy=True))
        self.weight = torch.zeros(terms, device=device)
        self.captured: Captured | None = None
        self.plain_left = self._WARMUP
        self.gradients: list[Tensor | None] = []  # where the graph leaves them

    def __call__(self, batch: Batch, weight: list[float]) -> tuple[Tensor, Tensor, Tensor]:
        copy_into(tensors(self.batch), tensors(batch))
        self.weight.copy_(torch.tensor(weight), non_blocking=True)
        if self.plain_left:
            self.plain_left -= 1
        elif self.captured is None:
            self.captured = self._capture()
        if self.captured is None:
            plain: tuple[Tensor, Tensor, Tensor] = on_side_stream(self._step)
            return plain
        loss, nlls, norm = self.captured.replay()
        return loss.clone(), nlls.clone(), norm.clone()

    def take_gradients(self) -> None:
        """Gradients that are read after a replay are this graph's, not another form's."""
        if self.captured is not None:
            for parameter, gradient in zip(self._parameters, self.gradients, strict=True):
                parameter.grad = gradient

    @property
    def _parameters(self) -> list[Tensor]:
        return list(self.stepper.model.parameters())

    def _step(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.stepper._step([self.batch], self.weight)

    def _capture(self) -> Captured | None:
        self.stepper.optimizer.zero_grad(set_to_none=True)
        try:
            captured = Captured(self._step)
        except RuntimeError as error:  # a driver or a kernel that cannot be captured
            warnings.warn(f"no CUDA graph of the step ({error}); going on, slower", stacklevel=2)
            self.plain_left = sys.maxsize
            return None
        self.gradients = [parameter.grad for parameter in self._parameters]
        return captured
