"""Real tasks in one line, on any checkpoint.

import allformer as af

af.fill("path/or/id", "The capital of [MASK] is Paris.")
kit = af.open_kit("path/or/id")                  # opened once, for many calls
af.embed(kit, ["A dog runs.", "Two men talk."])
"""

from __future__ import annotations

from allformer.tasks.entities import tag
from allformer.tasks.gaps import fill
from allformer.tasks.kit import Kit, open_kit
from allformer.tasks.labels import classify
from allformer.tasks.result import Answer, Entity, Fill, Label
from allformer.tasks.spans import answer
from allformer.tasks.stream import Stream
from allformer.tasks.texts import generate, summarise, translate
from allformer.tasks.vectors import embed, similarity

__all__ = [
    "Answer", "Entity", "Fill", "Kit", "Label", "Stream", "answer", "classify", "embed", "fill",
    "generate", "open_kit", "similarity", "summarise", "tag", "translate",
]  # fmt: skip
