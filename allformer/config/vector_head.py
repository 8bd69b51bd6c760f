"""One vector for a whole text or image: what two towers are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from allformer.config.base import Config, Positive
from allformer.config.check import refuse
from allformer.config.counting import Part, dense
from allformer.config.feed_forward import Feed
from allformer.config.head import Head, Identifier
from allformer.config.norm import Norm
from allformer.config.stack import Stack


@dataclass(frozen=True)
class Probe(Config):
    """A learned query that looks at all states, then a feed-forward layer with its residual and
    norm (SigLIP; Lee et al., 2019)."""

    heads: Positive
    feed: Feed
    norm: Norm = Norm()

    def parameters(self, dim: int) -> int:
        """The query, its attention, and what follows."""
        own = dim + 4 * dense(dim, dim)
        return own + self.norm.parameters(dim) + self.feed.line("", dim).parameters


@dataclass(frozen=True)
class VectorHead(Head):
    """The state at one place, through a norm of its own, and through a matrix to `width` numbers.

    `at`: the `"first"` token ([CLS] of an image), the `"last"` column, padding or not (SigLIP), the
    first `"eos"` of a text, the token with the `"largest"` id, as the first CLIP looked for the end
    of a text; or what a `Probe` sees in all of them. That state is what `pooler_output` has; what
    the matrix makes of it, with a `bias` or without, has the name `output`.
    """

    at: Literal["first", "last", "eos", "largest"] | Probe = "first"
    width: Positive | None = None
    norm: Norm | None = None
    output: Identifier = "embeds"
    bias: bool = False

    def fits(self, stack: Stack) -> object:
        """Refuse to look for a token where there is none."""
        if isinstance(self.at, Probe) and stack.states % self.at.heads:
            must = f"has heads={self.at.heads}, which must divide the states' {stack.states}"
            refuse(self, "at", must, "give it as many heads as the blocks have")
        if self.at not in ("eos", "largest"):
            return None
        if not stack.source.vocab:
            refuse(self, "at", "looks for a token, but its stack reads none", 'try at="first"')
        if self.at == "eos" and stack.source.eos_id is None:
            refuse(self, "at", "looks for Tokens.eos_id, which is None", "set it")
        return None

    def size(self, stack: Stack) -> int:
        """How wide the vector is."""
        return self.width or stack.states

    def parameters(self, stack: Stack) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        """Once a sequence, so that its work does not matter."""
        dim = stack.states
        if isinstance(self.at, Probe):
            yield Part(f"{name} probe", "d + 4·(d² + d) + feed + norm", self.at.parameters(dim))
        if self.norm is not None:
            yield self.norm.line(f"{name} norm", dim)
        text = "a state as it is" if self.width is None else f"d·{self.width}"
        own = 0 if self.width is None else dense(dim, self.width, self.bias)
        yield Part(name, text, own)
