"""Questions with choices, B × C × T: the stacks read B·C rows of text, the head's scores are B × C.

Legend: B questions, C choices of each, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from allformer.core.inputs import check_ids
from allformer.core.loss import check_targets
from allformer.core.output import Output
from allformer.errors import ConfigError

_WIDE = {"input_ids": 3, "inputs_embeds": 4}  # dimensions of what is a question with choices


class Choices(NamedTuple):
    """How many questions there are, and how many choices each has."""

    questions: int
    each: int

    def check(self, targets: Mapping[str, Tensor]) -> None:
        """One label for each question."""
        for name, labels in targets.items():
            check_targets(labels, name, (self.questions,), self.each)

    def apart(self, out: Output) -> Output:
        """The scores as questions × choices."""
        return Output({**out, "logits": out["logits"].view(self)})


def fold(inputs: dict[str, Tensor]) -> Choices | None:
    """Lay choices one below the other, in place: B C T … → B·C T …; None: they are so already."""
    name = next((name for name in _WIDE if name in inputs), None)
    first = None if name is None else inputs[name]
    if name is None or not isinstance(first, Tensor) or first.ndim != _WIDE[name]:
        return None
    if name == "input_ids" and not first.numel():
        check_ids(first, name, tuple(first.shape), None)  # empty, and refused so
    found = Choices(*first.shape[:2])
    for other, x in inputs.items():
        if isinstance(x, Tensor) and (x.ndim < 3 or x.shape[:2] != first.shape[:2]):
            raise ConfigError(
                f"{other}={tuple(x.shape)} must begin with questions × choices, {tuple(found)}, "
                f"as {name} does; give it of that shape"
            )
        inputs[other] = x.flatten(0, 1) if isinstance(x, Tensor) else x
    return found
