"""Large vocabularies in clusters: rare words have narrow vectors, and share one place in the first
softmax (Grave et al., 2017; Baevski and Auli, 2019)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Part, Widths
from allformer.config.head import LMHead
from allformer.config.source import Tokens
from allformer.config.stack import Stack


@dataclass(frozen=True)
class AdaptiveTokens(Tokens):
    """A table for each cluster of ids: 0 … cutoffs[0] − 1, and so on; frequent words come first.

    The i-th is `embed` / `divide`^i wide and projected to the stack's dim. With `divide=1` they are
    one table, projected only if `embed` (None: dim) is another width than dim.
    """

    cutoffs: tuple[Positive, ...] = ()
    divide: Positive = 1
    embed: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = (0, *self.cutoffs, self.vocab)
        if any(a >= b for a, b in itertools.pairwise(ends)):
            refuse(self, "cutoffs", f"must rise and stay below vocab={self.vocab}", "try (20_000,)")
        for name in ("width", "types"):
            if getattr(self, name):
                refuse(self, name, "is not for tokens in clusters", "leave it out; see embed")

    @property
    def clusters(self) -> tuple[tuple[int, int], ...]:
        """The first id of each cluster, and the one behind its last."""
        ends = (0, *self.cutoffs, self.vocab)
        return tuple(itertools.pairwise(ends))

    def widths(self, dim: int) -> tuple[int, ...]:
        """Of each cluster's vectors."""
        found = tuple((self.embed or dim) // self.divide**i for i in range(len(self.clusters)))
        if not found[-1]:
            must = f"leaves the last cluster no width: {found}"
            refuse(self, "divide", must, "divide by less, or give fewer cutoffs")
        return found

    def tables(self, dim: int) -> tuple[tuple[int, int], ...]:
        """Rows and width of each table."""
        widths = self.widths(dim)
        if self.divide == 1:
            return ((self.vocab, widths[0]),)
        return tuple((b - a, w) for (a, b), w in zip(self.clusters, widths, strict=True))

    def projected(self, dim: int) -> bool:
        """Whether vectors go through a matrix to be dim wide."""
        return self.divide != 1 or (self.embed or dim) != dim

    def parameters(self, stack: Widths) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        tables = self.tables(stack.dim)
        text = " + ".join(f"{rows:,}·{width}" for rows, width in tables)
        yield Part(f"{name} embedding", text, sum(rows * width for rows, width in tables))
        if self.projected(stack.dim):
            widths = [width for _, width in tables]
            text = f"d·({' + '.join(map(str, widths))})"
            own = stack.dim * sum(widths)
            yield Part(f"{name} embedding projections", text, own, 2 * stack.dim * widths[0])


@dataclass(frozen=True)
class AdaptiveHead(LMHead):
    """Scores over the clusters of `AdaptiveTokens`: first over the frequent words and the clusters
    of the others, then within a cluster. They are logarithms of probabilities.

    `tied`: the matrices are the source's tables. `shares` says for each cluster whether its
    projection is the source's too; () where there are none, or all are its own.
    """

    bias: bool = True
    shares: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("transform", "scale", "offset"):
            if getattr(self, name):
                refuse(self, name, "is not for words in clusters", "leave it out")
        if not self.bias:
            refuse(self, "bias", "is what words in clusters have", "leave it out")

    def fits(self, stack: Stack) -> AdaptiveTokens:
        """The source, whose clusters it scores; another is refused."""
        source = stack.source
        if not isinstance(source, AdaptiveTokens):
            refuse(stack, "source", "has no clusters", "give it source=AdaptiveTokens(…)")
        if self.shares and len(self.shares) != len(source.clusters):
            must = f"must say yes or no for each of {len(source.clusters)} clusters"
            refuse(self, "shares", must, f"try {(False,) * len(source.clusters)}")
        if any(self.shares) and not source.projected(stack.dim):
            refuse(self, "shares", "names projections that the source has not", "leave it out")
        return source

    def own_projections(self, stack: Stack) -> tuple[int, ...]:
        """The widths of the clusters whose projection is its own."""
        source = self.fits(stack)
        if not source.projected(stack.dim):
            return ()
        widths = source.widths(stack.dim)
        shares = self.shares or (False,) * len(widths)
        return tuple(w for w, shared in zip(widths, shares, strict=True) if not shared)

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        source = self.fits(stack)
        tables, others = source.tables(stack.dim), len(source.clusters) - 1
        matrices = 0 if self.tied else sum(rows * width for rows, width in tables)
        width, first = source.widths(stack.dim)[0], source.clusters[0][1] + others
        text = "tied to the embedding" if self.tied else f"{matrices:,}"
        parameters = matrices + source.vocab + others * (width + 1)
        text += " + V" + (f" + {others}·({width} + 1)" if others else "")
        yield Part(name, text, parameters, flops=2 * first * width)
        if own := self.own_projections(stack):
            text = f"d·({' + '.join(map(str, own))})"
            yield Part(f"{name} projections", text, stack.dim * sum(own), 2 * stack.dim * width)
