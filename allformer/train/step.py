"""One optimiser step: forward, backward, clip, Adam; compiled and replayed as one graph on a GPU.

Losses are summed over tokens and divided once by the tokens of the whole step, so accumulating
micro-batches of unequal length gives the full batch's gradient.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allformer.core.fused import trains
from allformer.core.fused.adamw import OnePassAdamW
from allformer.core.graph import Captured, copy_into, on_side_stream
from allformer.core.starts import decay_groups
from allformer.train.batch import Batch, mapped, tensors, uncounted
from allformer.train.objectives.objective import Objective

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepSettings:
    """What a step needs to know."""

    smoothing: float = 0.1
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.0
    precision: str = "fp32"
    compile: bool = False


@dataclass(frozen=True)
class Result:
    """Sums over the step's tokens, still on the device: reading them waits for it."""

    loss: Tensor
    nll: Tensor
    norm: Tensor
    tokens: int


class Stepper:
    """Owns the optimiser: `stepper(batches, rate)` does one step on a list of micro-batches."""

    def __init__(self, model: Any, objective: Objective[Any, Any], settings: StepSettings) -> None:
        self.model, self.objective, self.settings = model, objective, settings
        device = model.device
        self.on_gpu = device.type == "cuda"
        self.rate = torch.zeros((), device=device) if self.on_gpu else None
        groups = decay_groups(model, settings.weight_decay)
        options: Any = {"betas": settings.betas, "eps": settings.eps}
        self.optimizer: torch.optim.AdamW
        if self.rate is not None and OnePassAdamW.serves(model.parameters()):
            self.optimizer = OnePassAdamW(groups, lr=self.rate, **options)
        else:
            rate = 0.0 if self.rate is None else self.rate
            options |= {"fused": True, "capturable": self.on_gpu}
            self.optimizer = torch.optim.AdamW(groups, lr=rate, **options)
        self.scaler = torch.amp.GradScaler(device.type) if settings.precision == "fp16" else None
        self.dtype = DTYPES[settings.precision]
        # Where fused kernels do all between the matrix products, to capture them is enough: there
        # is nothing to wait for before the first step.
        compiled = settings.compile and not trains(device, self.dtype)
        self._loss = torch.compile(self.plain_loss, dynamic=False) if compiled else None
        self._graph: _Graph | None = None

    def __call__(self, batches: Sequence[Batch], rate: float) -> Result:
        """One step on the micro-batches (already on the device)."""
        for group in self.optimizer.param_groups:
            if self.rate is None:
                group["lr"] = rate
        if self.rate is not None:
            self.rate.fill_(rate)
        tokens = sum(batch.tokens for batch in batches)
        if self._can_replay(batches):
            return self._replay(batches[0], tokens)
        return self._step(batches, torch.tensor(1.0 / tokens, dtype=torch.float64), tokens)

    def _step(self, batches: Sequence[Batch], weight: Tensor, tokens: int) -> Result:
        self.optimizer.zero_grad(set_to_none=True)
        compute = self._loss or self.plain_loss
        losses, nlls = [], []
        for batch in batches:
            loss, nll = compute(uncounted(batch))
            scaled = loss * weight.to(loss.dtype)
            torch.autograd.backward(scaled if self.scaler is None else self.scaler.scale(scaled))
            losses.append(loss.detach())
            nlls.append(nll.detach())
        norm = self._update()
        return Result(torch.stack(losses).sum(), torch.stack(nlls).sum(), norm, tokens)

    def _update(self) -> Tensor:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        if self.scaler is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.clip, norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return norm
        # The fused optimiser divides by grad_scale and leaves the weights alone where found_inf is
        # set: clipping costs no pass of its own, and a step that is not finite changes nothing.
        optimizer = self.optimizer
        scale = (norm / self.settings.clip).clamp_min(1.0).float()  # the kernel takes no fp64
        optimizer.grad_scale = scale  # type: ignore[attr-defined]
        optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        optimizer.step()
        return norm

    def plain_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The objective's, not compiled."""
        smoothing = self.settings.smoothing
        return self.objective.loss(self.model, batch, smoothing=smoothing, dtype=self.dtype)

    def load(self, state: dict[str, Any]) -> None:
        """Restore optimiser and loss scale from a checkpoint's state."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate  # loading put a copy there; the graph reads this one
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])

    # --- the whole step as one CUDA graph: a small model is limited by launching kernels ---------

    def _can_replay(self, batches: Sequence[Batch]) -> bool:
        wanted = self.on_gpu and self.settings.compile
        return wanted and self.scaler is None and len(batches) == 1

    def _replay(self, batch: Batch, tokens: int) -> Result:
        if self._graph is None:
            self._graph = _Graph(self, batch)
        return self._graph(batch, tokens)


class _Graph:
    """The step of one size of batch: plainly at first, then captured and replayed."""

    _WARMUP = 3  # steps run plainly first: compilation, optimiser state, library handles

    def __init__(self, stepper: Stepper, batch: Batch) -> None:
        self.stepper = stepper
        self.batch = mapped(batch, lambda x: x.to(stepper.model.device, copy=True))
        self.weight = torch.zeros((), device=stepper.model.device)
        self.captured: Captured | None = None
        self.plain_left = self._WARMUP

    def __call__(self, batch: Batch, tokens: int) -> Result:
        copy_into(tensors(self.batch), tensors(batch))
        self.weight.fill_(1.0 / tokens)
        if self.plain_left:
            self.plain_left -= 1
        elif self.captured is None:
            self.captured = self._capture(tokens)
        if self.captured is None:
            plain: Result = on_side_stream(lambda: self._step(tokens))
            return plain
        r: Result = self.captured.replay()
        return Result(r.loss.clone(), r.nll.clone(), r.norm.clone(), tokens)

    def _step(self, tokens: int) -> Result:
        return self.stepper._step([self.batch], self.weight, tokens)

    def _capture(self, tokens: int) -> Captured | None:
        self.stepper.optimizer.zero_grad(set_to_none=True)
        try:
            return Captured(lambda: self._step(tokens))
        except RuntimeError as error:  # a driver or a kernel that cannot be captured
            warnings.warn(f"no CUDA graph of the step ({error}); going on, slower", stacklevel=2)
            self.plain_left = sys.maxsize
            return None
