"""The head that chooses among several texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.base import Probability
from allformer.config.counting import Part, dense
from allformer.config.head import Head
from allformer.config.stack import Stack


@dataclass(frozen=True)
class ChoiceHead(Head):
    """One score for each text, from the pooler: which of the choices fits best (SWAG, RACE).

        EncoderOnly(stack, ChoiceHead(), Pool())

    A model with it takes questions × choices × tokens and gives questions × choices.
    """

    dropout: Probability = 0.0

    @property
    def pooled(self) -> bool:
        return True

    def parameters(self, stack: Stack) -> int:
        return dense(stack.states, 1)

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        yield Part(name, "d + 1", self.parameters(stack))
