"""Gradient descent with momentum: PyTorch's fused one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from allformer.config.base import Probability
from allformer.core.starts import decay_groups
from allformer.errors import ConfigError
from allformer.train.optim.settings import Optim, Rate


@dataclass(frozen=True)
class Sgd(Optim, named="sgd"):
    """w − rate · v with v = momentum · v + gradient + weight_decay · w."""

    captures: ClassVar[bool] = True
    clips_inside: ClassVar[bool] = True

    rate: Rate = 0.1
    momentum: Probability = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ConfigError(
                "optim.nesterov=True looks ahead along the momentum, and optim.momentum=0; "
                "try momentum: 0.9, or nesterov: false"
            )

    def make(self, model: nn.Module, lr: Tensor | float, capturable: bool) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(
            decay_groups(model, self.weight_decay),
            lr=lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            fused=True,
        )
        if self.momentum:
            # Torch begins with v = gradient, in memory that it leaves as it found it where the
            # first step's found_inf is set. From zeros v becomes the same, and a CUDA graph may
            # be captured before the first step.
            trained = (p for group in optimizer.param_groups for p in group["params"])
            for parameter in trained:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
