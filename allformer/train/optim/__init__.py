"""Optimisers by name: PyTorch's own where it has them.

    settings = Optim.read({"name": "adamw", "rate": 3e-4, "weight_decay": 0.1})
    optimizer = make_optimizer(settings, model, lr=settings.rate, capturable=False)

`settings.captures` says whether a step can be part of a CUDA graph, with the rate as a tensor on
the device; `settings.clips_inside`, whether `optimizer.grad_scale` and `optimizer.found_inf` are
heeded: gradients are divided by the one, and a step with the other set changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer.errors import ConfigError
from allformer.train.optim.adafactor import Adafactor
from allformer.train.optim.adam import Adam, AdamW
from allformer.train.optim.clipped import clipped_step
from allformer.train.optim.muon import Muon
from allformer.train.optim.settings import Optim
from allformer.train.optim.sgd import Sgd

__all__ = ["Adafactor", "Adam", "AdamW", "Muon", "Optim", "Sgd", "clipped_step", "make_optimizer"]


def make_optimizer(
    settings: Optim, model: nn.Module, *, lr: Tensor | float, capturable: bool
) -> torch.optim.Optimizer:
    """The optimiser of a model's parameters; what modules name in `decays` decays.

    >>> make_optimizer(AdamW(rate=3e-4), model, lr=3e-4, capturable=False)

    `lr` is a number, which the loop sets in each group before a step, or a tensor, into which it
    writes: that is what a CUDA graph (`capturable`) needs.
    """
    if capturable and not settings.captures:
        raise ConfigError(
            f"optim.name={settings.named} waits for the device in its step and cannot be captured; "
            f"make it with capturable=False"
        )
    return settings.make(model, lr, capturable)
