"""Planted bugs of heads that choose among texts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import allformer as af
from allformer.config import ChoiceHead, EncoderOnly, Pool
from tests.models import stack
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_choices as group
from tests.parity import zoo

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(name: str) -> Path:
    """The case as transformers writes it, once."""
    return zoo.on_disk(zoo.oracle(group.BY_NAME[name]), Path(_FOLDER.name) / name)


def _same(kind: str, name: str, side: str = "right") -> Callable[[], None]:
    return lambda: getattr(group, f"check_{kind}")(name, side, _written(name))


def _shapes() -> None:
    tree = EncoderOnly(stack(dropout=0.0), ChoiceHead(), Pool())
    group.check_shapes(af.build(tree, seed=0).double().eval())


KILLERS: dict[str, Callable[[], None]] = {
    "choices, shapes": _shapes,
    "choices of bert": _same("forward", "bert"),
    "choices of bert, trained": _same("training", "bert"),
    "choices of longformer, unmarked": lambda: group.check_unmarked(_written("longformer")),
    "choices' dropout": partial(group.check_dropout, "roberta"),
}
HEAD = "heads.choices:ChoiceHead"

MUTANTS: list[Mutant] = [
    bug("choices stand side by side", "the scores of two questions are mixed",
        "choices:Choices.apart", "view(self)", "view(self.each, self.questions).T",
        "choices, shapes", "choices of bert"),
    bug("questions stand inside choices", "a softmax over other questions' choices",
        f"{HEAD}.sums", "view(questions, -1)", "view(-1, questions).T",
        "choices, shapes", "choices of bert, trained"),
    bug("each choice by itself", "a score for each that no other lowers",
        f"{HEAD}.sums", "view(questions, -1)", "view(questions, -1).sigmoid().log()",
        "choices, shapes", "choices of bert, trained"),
    bug("the question is global, not what follows it", "the choices see their window alone",
        "mixers.global_window:_marks", "if not _chooses(scene.head):", "if True:",
        "choices of longformer, unmarked"),
    bug("the second separator is global too", "transformers leaves it out",
        "mixers.global_window:_marks", "first + ends.gather(1, (first + 1).clamp_max(width - 1))",
        "first", "choices of longformer, unmarked"),
    bug("a choice drops what classes drop", "transformers' heads for it have no such field",
        "allformer.families.roberta:read",
        '"hidden_dropout_prob" if kind == "choice" else "classifier_dropout"',
        '"classifier_dropout"', "choices' dropout"),
]  # fmt: skip
