"""Two heads over the same labels: one learns from the data, one from a teacher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.config.check import Rule, refuse
from allformer.config.counting import Part, dense
from allformer.config.head import Head
from allformer.config.patches import Patches
from allformer.config.stack import Stack


@dataclass(frozen=True)
class TeacherHead(Head):
    """Scores over `labels` from `[CLS]` and from the distillation token; the answer is their mean
    (DeiT). Each learns half of the loss: from `labels` the one, from `teacher_labels`, the classes
    that a teacher says, the other (Touvron et al., 2020, equation 3).
    """

    labels: Annotated[
        tuple[str, ...], Rule(bool, "must be a tuple of at least one name", 'try ("no", "yes")')
    ]

    def fits(self, stack: Stack) -> None:
        if not isinstance(stack.source, Patches) or not (
            stack.source.cls and stack.source.distilled
        ):
            must = "reads [CLS] and a distillation token, which its stack has not"
            refuse(self, "labels", must, "give the stack source=Patches(…, distilled=True)")

    def parameters(self, stack: Stack) -> int:
        return 2 * dense(stack.states, len(self.labels))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        classes = len(self.labels)
        yield Part(name, f"2·(d·{classes} + {classes})", self.parameters(stack))
