"""An opponent: a network that learns against the model, with an optimiser of its own.

    self.opponent = Opponent(discriminator, AdamW(rate=1e-3), captures)    # in `Objective.meet`
    self.opponent.learn(losses.sum(), count)                               # in `loss`
    fooled = self.opponent.frozen(generated)                               # in `loss`
    self.opponent.step(rate)                                               # in `Objective.stepped`

Its gradients are added up over the micro-batches of a step, as the model's are, and divided once by
what they are sums over. `state` and `restore` are for the objective's own: with them a resumed run
goes on with the same opponent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from allformer.train.optim import Optim, clipped_step, make_optimizer


class Opponent:
    """`module` is on its device; `settings.rate` is not read: each step is given its rate."""

    def __init__(self, module: nn.Module, settings: Optim, captures: bool = False) -> None:
        self.module, self.settings = module, settings
        self.parameters = list(module.parameters())
        device = self.parameters[0].device
        captures = captures and settings.captures
        self._rate = torch.zeros((), device=device) if captures else None
        self.optimizer: Any = make_optimizer(
            settings, module, lr=0.0 if self._rate is None else self._rate, capturable=captures
        )
        self._count = torch.zeros((), device=device)

    def __call__(self, *args: Any, **more: Any) -> Any:
        """What it says, with gradients to its weights."""
        return self.module(*args, **more)

    def frozen(self, *args: Any, **more: Any) -> Any:
        """What it says, with gradients to what is given and none to its weights."""
        weights = {name: p.detach() for name, p in self.module.named_parameters()}
        return functional_call(self.module, weights, args, more)

    def learn(self, loss: Tensor, count: Tensor | float, *, again: bool = False) -> None:
        """Add the gradients of a sum over `count` examples to those of this step. `again`: what it
        said is kept, for a gradient to what was given."""
        torch.autograd.backward(loss, inputs=self.parameters, retain_graph=again)
        self._count += count

    @torch.no_grad()
    def step(self, rate: Tensor | float) -> None:
        """Follow the gradients of this step, as means."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if not gradients:
            return
        torch._foreach_div_(gradients, self._count)
        if self._rate is None:
            for group in self.optimizer.param_groups:
                group["lr"] = float(rate)
        else:
            self._rate.copy_(rate if isinstance(rate, Tensor) else torch.tensor(rate))
        norm = torch.nn.utils.get_total_norm(gradients)
        clipped_step(self.optimizer, self.settings, self.parameters, norm)
        self.optimizer.zero_grad(set_to_none=True)
        self._count.zero_()

    # --- across a resume --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Weights and optimiser; the tensors are those in use."""
        weights = {name: x.detach() for name, x in self.module.state_dict().items()}
        return {"weights": weights, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.module.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate  # loading put a copy there; the graph reads this one
