"""Classes of an image by two heads, one of which imitates a teacher.

Legend: B images, T tokens, dim model width, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from allformer import config
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.loss import Sums, check_targets, entropy_sums
from allformer.core.registry import implements
from allformer.core.taps import tap


@implements(config.TeacherHead)
class TeacherHead(Head):
    """B T dim → B L, thrice: by [CLS], by the distillation token, and the mean of both."""

    gives = ("logits", "cls_logits", "distillation_logits")
    targets = ("labels", "teacher_labels")
    reads_first = True
    front = 2

    def __init__(
        self, head: config.TeacherHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.cls = Linear(stack.states, len(head.labels))
        self.distilled = Linear(stack.states, len(head.labels))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        own = tap(self, "cls_logits", self.cls(hidden.grid[:, 0]))
        told = tap(self, "distillation_logits", self.distilled(hidden.grid[:, 1]))
        both = tap(self, "logits", (own + told) / 2)
        return {"logits": both, "cls_logits": own, "distillation_logits": told}

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        classes, parts = len(self.config.labels), []
        for scores, name in zip(self.gives[1:], self.targets, strict=True):
            check_targets(targets[name], name, (len(hidden.grid),), classes)
            parts.append(entropy_sums(outputs[scores], targets[name]))
        loss = (parts[0].mean + parts[1].mean) / 2
        return Sums(loss, loss.detach(), loss.new_ones(()))
