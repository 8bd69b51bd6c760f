"""An exponential moving average of a model's weights: smoother than any step's own.

ema = Ema(model, decay=0.999)
…                                  # after each step of the optimiser
ema.update()
with ema.swapped():                # validate with the average
    validate(model, …)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from allformer.checkpoint.run import is_beside
from allformer.core.precision import widen
from allformer.errors import CheckpointError, ConfigError
from allformer.train.parallel.pieces import local


class Ema:
    """average ← decay · average + (1 − decay) · weight, where the weights are, in at least fp32.

    With `warmup` the decay is at most (1 + n) / (10 + n) in the n-th update, so that the first
    steps, which are far from where training leads, are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999, *, warmup: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"ema decay={decay} must be at least 0 and below 1; try 0.999")
        self.decay, self.warmup, self.updates = decay, warmup, 0
        trains = not is_beside(model)  # what an adapter stands beside never moves
        named = model.named_parameters()  # shared ones once
        self.parameters = {n: p for n, p in named if trains or p.requires_grad}
        self.average = {n: widen(p.detach()).clone() for n, p in self.parameters.items()}

    @property
    def now(self) -> float:
        """The decay of the next update."""
        n = self.updates + 1
        return min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now; does not wait for the device."""
        weights = [widen(local(p.detach())) for p in self.parameters.values()]
        torch._foreach_lerp_([local(x) for x in self.average.values()], weights, 1 - self.now)
        self.updates += 1

    @torch.no_grad()
    def settle(self) -> None:
        """Leave the average in the model, for good."""
        weights = [local(p.detach()) for p in self.parameters.values()]
        torch._foreach_copy_(weights, [local(x) for x in self.average.values()])

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The average stands in the model's tensors meanwhile; then its weights, bit for bit."""
        weights: list[Tensor] = [local(p.detach()) for p in self.parameters.values()]
        kept = [w.clone() for w in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, [local(x) for x in self.average.values()])
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, kept)

    def state_dict(self) -> dict[str, Any]:
        """For `load_state_dict` after a resume; the tensors are those in use, not copies."""
        return {"updates": self.updates, "average": dict(self.average)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; decay and warm-up are those of this object."""
        found: dict[str, Tensor] = state["average"]
        odd = sorted(set(found) ^ set(self.average))
        odd += [n for n, x in self.average.items() if n in found and found[n].shape != x.shape]
        if odd:
            raise CheckpointError(
                f"the moving average kept is of another model: {odd[0]} is missing or of another "
                f"shape on one side; resume with the model that it was made with"
            )
        for name, tensor in self.average.items():
            tensor.copy_(found[name])
        self.updates = state["updates"]
