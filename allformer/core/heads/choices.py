"""One score for each text, of which several are the choices of one question.

Legend: B questions, C choices of each, R = B·C texts, dim model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from allformer import config
from allformer.core.dropout import drop
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.loss import Sums, check_targets, entropy_sums
from allformer.core.registry import implements
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.ChoiceHead)
class ChoiceHead(Head):
    """R dim → R 1, from the pooler; a softmax over the C of a question, one below the other."""

    chooses = True
    front = 1

    def __init__(
        self, head: config.ChoiceHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.out = Linear(stack.states, 1)

    def forward(self, x: Tensor) -> Tensor:
        return tap(self, "logits", self.out(drop(x, self.config.dropout, self.training)))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        assert hidden.pooled is not None  # the config refuses it
        return {"logits": self(hidden.pooled)}

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        (name,), scores = self.targets, outputs["logits"]
        labels, texts = targets[name], len(scores)
        questions = labels.numel() if isinstance(labels, Tensor) else 0
        if not questions or texts % questions:
            raise ConfigError(
                f"{name} is of {questions} questions, but {texts} texts cannot be dealt out to "
                f"them; give a tensor with one number for each question"
            )
        scores = scores.view(questions, -1)  # B C
        check_targets(labels, name, (len(scores),), scores.shape[1])
        return entropy_sums(scores, labels)
