"""Scores over the colours of a pixel."""

from __future__ import annotations

from dataclasses import dataclass

from allformer.config.check import refuse
from allformer.config.head import LMHead
from allformer.config.stack import Stack


@dataclass(frozen=True)
class ColourHead(LMHead):
    """Scores over all words but the last, which begins an image and is never said (ImageGPT)."""

    tied: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied:
            refuse(self, "tied", "leaves no word out", "give LMHead(), which scores them all")

    def words(self, stack: Stack) -> int:
        return stack.source.vocab - 1
