"""Adafactor (Shazeer & Stern, 2018): PyTorch's, whose second moments are a row and a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from allformer.config.check import Rule
from allformer.core.starts import decay_groups
from allformer.train.optim.settings import Optim, Rate

Exponent = Annotated[float, Rule(lambda x: x <= 0, "must be at most 0", "-0.8 is usual")]
Threshold = Annotated[float, Rule(lambda x: x >= 1, "must be at least 1", "1.0 is usual")]


@dataclass(frozen=True)
class Adafactor(Optim, named="adafactor"):
    """A step is min(rate, 1/√step) of a tensor's own size; β₂ is 1 − step^beta2_decay.

    `threshold` bounds the root mean square of an update before it is scaled. Torch's step reads
    numbers from the device, so that no CUDA graph can hold it.
    """

    captures: ClassVar[bool] = False
    clips_inside: ClassVar[bool] = False

    rate: Rate = 1e-2
    beta2_decay: Exponent = -0.8
    threshold: Threshold = 1.0

    def make(self, model: nn.Module, lr: Tensor | float, capturable: bool) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(
            decay_groups(model, self.weight_decay),
            lr=lr,
            beta2_decay=self.beta2_decay,
            d=self.threshold,
        )
