"""Planted bugs of the contrast of images and texts: who belongs to whom, and what is kept apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_contrastive

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _data() -> Path:
    return test_contrastive.write_halves(Path(_FOLDER.name) / "halves")


KILLERS: dict[str, Callable[[], None]] = {
    "pair loss": test_contrastive.check_pair_loss,
    "pair loss, sigmoid": partial(test_contrastive.check_pair_loss, "two towers, sigmoid"),
    "equal captions": test_contrastive.check_equal_captions,
    "scale below a hundred": lambda: test_contrastive.check_scale_is_bounded(_data()),
    "new wordings": lambda: test_contrastive.check_wordings_are_new(_data()),
}
LOSS, OBJECTIVE = "allformer.train.pictures.pair_loss", "allformer.train.objectives.contrastive"

MUTANTS: list[Mutant] = [
    bug("equal captions are negatives", "cats are told from cats: a floor under the loss",
        f"{LOSS}:pair_loss", "shares @ same.to(shares.dtype)", "shares", "equal captions",
        "pair loss"),
    bug("a target of more than one", "classes with many images count more",
        "heads.contrast:one_way", "found / torch.where(total > 0, total, 1)", "found", "pair loss"),
    bug("mixed images the wrong way round", "texts look for what was cut out",
        f"{LOSS}:pair_loss", "one_way(by_text, back.t())", "one_way(by_text, back)", "pair loss"),
    bug("both ways, not their mean", "twice the loss, twice the step",
        f"{LOSS}:pair_loss", ".sum() / 2", ".sum()", "equal captions", "pair loss"),
    bug("mixed images belong whole", "a corner of a cat is a cat", f"{LOSS}:pair_loss",
        "each_pair(by_image, belongs)", "each_pair(by_image, (belongs > 0).to(belongs))",
        "pair loss, sigmoid"),
    bug("the scale runs away", "the softmax saturates, and training with it",
        f"{OBJECTIVE}:Contrastive.loss", "head.scale.clamp_(max=MOST)", "pass",
        "scale below a hundred"),
    bug("scored with the wordings of training", "zero-shot looks better than it is",
        f"{OBJECTIVE}:Contrastive.encode", "self.data.templates, self.data.test_templates",
        "self.data.templates, self.data.templates", "new wordings"),
]  # fmt: skip
