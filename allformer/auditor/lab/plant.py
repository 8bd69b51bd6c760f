"""Plant a bug: change the text of the right models, and run it.

build("decoder", bug="no_scale", style="fused")
lines(bug, "fused")          # the right and the wrong text, as they are put in
"""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allformer.auditor.lab import models
from allformer.auditor.lab.bugs import BUGS, Bug

TEXT = Path(models.__file__).read_text(encoding="utf-8")
NAMED = {bug.name: bug for bug in BUGS}


def text_of(bug: Bug) -> str:
    """The models' text with the bug in it."""
    text = TEXT
    for right, wrong in bug.edits:
        assert right in text, f"{bug.name}: {right!r} is not in the lab's models"
        text = text.replace(right, wrong)
    return text


def lines(bug: Bug, style: str) -> tuple[str, str]:
    """What stands in the right model of a style, and what the bug puts there."""
    own = models.STYLES[style].__name__
    others = [m.__name__ for m in models.STYLES.values() if m.__name__ not in (own, "Separate")]
    if own == "Mha":
        others.append("Separate")
    seen = TEXT
    for name in others:
        seen = re.sub(rf"^class {name}\(.*?(?=^\w)", "", seen, flags=re.MULTILINE | re.DOTALL)
    edits = [edit for edit in bug.edits if edit[0] in seen]
    right, wrong = (
        "; ".join(" ".join(part.split()) for part in side) for side in zip(*edits, strict=True)
    )
    return right, wrong


@cache
def _shapes(bug: str) -> dict[str, Any]:
    if not bug:
        return models.SHAPES
    names: dict[str, Any] = {"__name__": f"{models.__name__}.{bug}", "copy": copy}
    exec(compile(text_of(NAMED[bug]), f"{models.__file__} with {bug}", "exec"), names)
    shapes: dict[str, Any] = names["SHAPES"]
    return shapes


def build(
    shape: str,
    bug: str = "",
    style: str = "separate",
    *,
    vocab: int = 61,
    width: int = 48,
    heads: int = 4,
    layers: int = 2,
    seed: int = 0,
    **more: Any,
) -> nn.Module:
    """A model of the lab; without `bug` it is sound."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = _shapes(bug)[shape](vocab, width, heads, layers, style, **more)
    return model
