"""BigBird's head for answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from allformer.config.base import Natural
from allformer.config.counting import Part
from allformer.config.feed_forward import Feed
from allformer.config.head import SpanHead
from allformer.config.norm import Norm
from allformer.config.stack import Stack


@dataclass(frozen=True)
class ReadingHead(SpanHead):
    """Where an answer begins and ends in the text that follows a question (BigBird).

        ReadingHead(feed=Feed(3072, "gelu_tanh"), norm=Norm(), sep_id=66)

    Before the two scores a feed-forward layer with its residual and norm. The question is all up to
    the first token `sep_id`: its tokens, but for the first one, cannot be the answer; where no
    token types are given, it has the first and the text the second.
    """

    feed: Feed = field(kw_only=True)
    norm: Norm = field(kw_only=True, default=Norm())
    sep_id: Natural = field(kw_only=True)

    def parameters(self, stack: Stack) -> int:
        own = self.feed.line("", stack.dim).parameters + self.norm.parameters(stack.dim)
        return own + super().parameters(stack)

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        yield self.feed.line(f"{name} feed-forward", stack.dim)
        yield self.norm.line(f"{name} norm", stack.dim)
        text = "d·2" + (" + 2" if self.bias else "")
        yield Part(name, text, super().parameters(stack), 4 * stack.dim)
