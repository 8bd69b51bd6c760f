"""One vector for a whole text or image: what two towers are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Part, dense
from allformer.config.head import Head, Identifier
from allformer.config.norm import Norm
from allformer.config.stack import Stack


@dataclass(frozen=True)
class VectorHead(Head):
    """The state at one place, through a norm of its own, and through a matrix to `width` numbers.

    `at`: the `"first"` token ([CLS] of an image), the first `"eos"` of a text, or the token with
    the `"largest"` id, as the first CLIP looked for the end of a text. The state is what
    `pooler_output` has; what the matrix makes of it has the name `output`.
    """

    at: Literal["first", "eos", "largest"] = "first"
    width: Positive | None = None
    norm: Norm | None = None
    output: Identifier = "embeds"

    def fits(self, stack: Stack) -> object:
        """Refuse to look for a token where there is none."""
        if self.at == "first":
            return None
        if not stack.source.vocab:
            refuse(self, "at", "looks for a token, but its stack reads none", 'try at="first"')
        if self.at == "eos" and stack.source.eos_id is None:
            refuse(self, "at", "looks for Tokens.eos_id, which is None", "set it")
        return None

    def parameters(self, stack: Stack) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        """Once a sequence, so that its work does not matter."""
        if self.norm is not None:
            yield self.norm.line(f"{name} norm", stack.states)
        text = "a state as it is" if self.width is None else f"d·{self.width}"
        own = 0 if self.width is None else dense(stack.states, self.width, bias=False)
        yield Part(name, text, own)
