"""Scores over labels of a whole sound.

Legend: B rows, T vectors, dim model width, N states of each vector, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.loss import Sums, class_sums
from allformer.core.registry import implements
from allformer.core.taps import tap


@implements(config.SoundClassHead)
class SoundClassHead(Head):
    """(mean_t x_t P) W: B T dim → B L."""

    weights: nn.Parameter | None  # N

    def __init__(
        self, head: config.SoundClassHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.reads_entries = head.weighted
        self.project = Linear(stack.states, head.width)
        self.out = Linear(head.width, len(head.labels))
        count = len(stack.blocks) + 1
        weights = nn.Parameter(torch.empty(count)) if head.weighted else None
        self.register_parameter("weights", weights)

    def reset_parameters(self) -> None:
        """All states alike."""
        if self.weights is not None:
            nn.init.constant_(self.weights, 1 / len(self.weights))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        states = hidden.grid
        if self.weights is not None:
            assert hidden.entries is not None  # the model is asked for them
            share = tap(self, "shares", self.weights.softmax(0)).to(states.dtype)  # N
            states = torch.einsum("n,nbtd->btd", share, hidden.entries)
        mean = tap(self, "mean", self.project(states).mean(1))
        return {"logits": tap(self, "logits", self.out(mean))}

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        (name,) = self.targets
        return class_sums(outputs["logits"], targets[name], "single_label_classification", name)
