"""The slot `optim` of a recipe, and what every choice has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from allformer.config.base import Probability
from allformer.config.check import Rule, above
from allformer.train.sections.section import NotNegative, Section

Rate = Annotated[float, above(0, "try 1e-3")]
Small = Annotated[float, above(0, "try 1e-8")]
Clip = Annotated[float, above(0, "try 1.0, or null for none")]
Betas = Annotated[
    tuple[Probability, ...],
    Rule(lambda x: len(x) == 2, "must be two numbers", "try [0.9, 0.999]"),
]


@dataclass(frozen=True)
class Optim(Section, section="optim", key="name", default="adamw"):
    """`rate` is the schedule's peak; `clip` the norm that no step's gradient exceeds."""

    captures: ClassVar[bool]  # a step can be part of a CUDA graph
    clips_inside: ClassVar[bool]  # heeds grad_scale and found_inf

    rate: Rate = 1e-3
    weight_decay: NotNegative = 0.0
    clip: Clip | None = 1.0

    def make(self, model: nn.Module, lr: Tensor | float, capturable: bool) -> torch.optim.Optimizer:
        """The optimiser of a model's parameters."""
        raise NotImplementedError
