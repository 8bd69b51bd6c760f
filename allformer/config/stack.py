"""A stack: an encoder or a decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from allformer.config.attention import divisors
from allformer.config.base import Config, Positive, Probability
from allformer.config.block import Block
from allformer.config.check import Rule, refuse
from allformer.config.counting import Part, dense, plain_line
from allformer.config.flow import Flow
from allformer.config.norm import Norm
from allformer.config.plane import LearnedPlane
from allformer.config.position import Position, Sinusoidal
from allformer.config.relative import BucketBias, Relative
from allformer.config.rotary import Rotary
from allformer.config.source import Source, Tokens
from allformer.errors import ConfigError


@dataclass(frozen=True)
class Stack(Config):
    """A source of vectors, a position, and a tuple of blocks: an encoder or a decoder.

    `blocks` comes from `repeat(block, n)` or `cycle((a, b), n)`: variation by layer is data.
    `relative` is the position inside the attention. `share` names for each block the set of
    weights that it uses: `share=(0, 0, 1, 1)` is four layers deep and holds two (ALBERT).
    `dropout` acts on the embedded input, after its norm or before it (`dropout_at="summed"`:
    BigBird), `final_dropout` on the output (T5). `flow` joins the sub-layers; None: each adds to
    what it reads. `between` adds positions after each layer but the last, of its own for each
    (YOLOS). `final_norm_at="layers"`: the final norm stands behind every layer too, so that the
    last one's states pass it twice (transformers' DETR with auxiliary losses).
    """

    dim: Positive
    source: Source
    position: Position | None
    blocks: Annotated[
        tuple[Block, ...],
        Rule(bool, "must be a tuple of at least one Block", "try repeat(block, 6)"),
    ]
    causal: bool = False
    source_norm: Norm | None = None
    final_norm: Norm | None = None
    relative: Relative | None = None
    share: tuple[int, ...] | None = None
    dropout: Probability = 0.1
    final_dropout: Probability = 0.0
    dropout_at: Literal["normed", "summed"] = "normed"
    flow: Flow | None = None
    between: LearnedPlane | None = None
    final_norm_at: Literal["end", "layers"] = "end"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.position, Sinusoidal) and self.width % 2:
            refuse(self, "dim", "must be even for Sinusoidal positions", f"try {self.dim + 1}")
        counted = self.position is not None and self.position.count == "ids"
        if counted and self.source.pad_id is None:
            refuse(self, "position", "counts ids that are not padding", "give Tokens.pad_id")
        self._check_heads()
        self._check_relative()
        self._check_share()
        for position in (self.position, self.between):
            if position is not None:
                position.check(self)
        if self.between is not None and (self.flow is not None or self.width != self.dim):
            must = "is added between layers of one stream, as wide as the source"
            refuse(self, "between", must, "set flow=None and the source's width=None")
        if self.final_norm_at == "layers":
            self._check_norms()
        for block in self.blocks:
            block.attention.mixer.check(block.attention, self)
        if self.flow is not None:
            self.flow.check(self)

    @property
    def width(self) -> int:
        """The width of the embedded tokens, before ALBERT's up-projection."""
        return self.source.width or self.dim

    @property
    def states(self) -> int:
        """The width of the states that it gives, which heads read."""
        return self.dim if self.flow is None else self.flow.width(self.dim)

    @property
    def steady(self) -> bool:
        """Whether a token's angles are the same whatever else is read with it."""
        return not isinstance(self.relative, Rotary) or self.relative.steady

    @property
    def kept(self) -> int:
        """Numbers of one token that are kept for the backward pass."""
        layers = [block.activations(self.dim) for block in self.blocks]
        return self.dim + sum(layers) if self.flow is None else self.flow.kept(layers, self.dim)

    @property
    def tokens(self) -> Tokens:
        """The vocabulary that it reads; an error where it reads something else."""
        if isinstance(self.source, Tokens):
            return self.source
        refuse(self, "source", "reads no tokens", "give it source=Tokens(…)")

    @property
    def longest(self) -> int | None:
        """The most positions that it can number; None: no end."""
        mixers = (block.attention.mixer for block in self.blocks)
        slots = (self.position, self.relative, *mixers)
        limits = [slot.longest for slot in slots if slot is not None and slot.longest is not None]
        return min(limits, default=None)

    @property
    def trained(self) -> int | None:
        """How many positions it was trained for, where that is told."""
        slots = (self.position, self.relative)
        return next((slot.trained for slot in slots if slot and slot.trained is not None), None)

    @property
    def segment(self) -> int | None:
        """Tokens that are read at a time where those before are remembered: as many as are."""
        return None if self.relative is None else self.relative.memory or None

    def state(self, n: int) -> int:
        """Numbers that decoding remembers after n tokens."""
        if self.segment is None:
            return sum(block.attention.state(self.dim, n) for block in self.blocks)
        # what a layer read, and the keys and values made of it
        kept = (self.dim + block.attention.cached(self.dim) for block in self.blocks)
        return min(n, self.segment) * sum(kept)

    def _check_heads(self) -> None:
        for i, block in enumerate(self.blocks):
            for part in (block.attention, block.cross):
                if part is not None and part.head_dim is None and self.dim % part.heads:
                    heads = part.heads
                    near = sorted(divisors(self.dim), key=lambda n: abs(n - heads))[:3]
                    raise ConfigError(
                        f"Stack.blocks[{i}] has Attention.heads={heads}, which must divide "
                        f"Stack.dim={self.dim}; try heads of {', '.join(map(str, sorted(near)))}, "
                        f"or give head_dim"
                    )

    def _check_norms(self) -> None:
        """A step of writing knows of no norm between its layers."""
        if self.final_norm is None or self.flow is not None or self.causal:
            must = "is for stacks of one stream with a final norm, that are not causal"
            refuse(self, "final_norm_at", must, 'give final_norm, or "end"')

    def _check_relative(self) -> None:
        shapes = {(b.attention.heads, b.attention.size(self.dim)) for b in self.blocks}
        if isinstance(self.relative, Rotary) and any(size % 2 for _, size in shapes):
            refuse(self, "relative", "turns pairs: head_dim must be even", "try head_dim=64")
        if isinstance(self.relative, Rotary) and len({size for _, size in shapes}) > 1:
            refuse(self, "relative", "needs one head_dim in all blocks", "give head_dim")
        if self.relative is not None:
            self.relative.fits(self)
        if isinstance(self.relative, BucketBias) and len({heads for heads, _ in shapes}) > 1:
            refuse(self, "relative", "needs one number of heads in all blocks", "make them equal")

    def _check_share(self) -> None:
        if self.share is None:
            return
        if len(self.share) != len(self.blocks):
            must = f"must name a set of weights for each of the {len(self.blocks)} blocks"
            refuse(self, "share", must, f"try {(0,) * len(self.blocks)}")
        if sorted(set(self.share)) != list(range(len(set(self.share)))):
            refuse(self, "share", "must number the sets from 0 without gaps", "renumber them")
        first: dict[int, Block] = {}
        for i, block in zip(self.share, self.blocks, strict=True):
            if first.setdefault(i, block) != block:
                refuse(self, "share", f"gives set {i} to unequal blocks", "make them equal")

    def lines(self, name: str, n: int, shared: bool = False) -> Iterator[Part]:
        """Its lines in the count, at n tokens; `shared`: another stack has the table of tokens."""
        if self.segment is not None:
            # Segments of M behind a memory of M: a query meets M + (M + 1)/2 keys, as in 3M.
            n = min(n, 3 * self.segment)
        yield from self.source.lines(self, name, shared)
        yield from self._positions(f"{name} positions")
        if self.between is not None and len(self.blocks) > 1:
            line = self.between.line(f"{name} positions between layers", self.width)
            often = len(self.blocks) - 1
            text = f"{often} × {line.formula}"
            yield replace(line, formula=text, parameters=often * line.parameters)
        if self.source_norm is not None:
            yield self.source_norm.line(f"{name} source norm", self.width)
        if self.source.width is not None:
            narrow, d = self.width, self.dim
            text = f"{narrow}·d + d = {narrow}·{d} + {d}"
            yield Part(f"{name} up-projection", text, dense(narrow, d), 2 * narrow * d)
        yield from self._layers(name, n)
        yield from self._common(name)
        yield from self._distances(f"{name} relative positions", n)
        if self.final_norm is not None:
            yield self.final_norm.line(f"{name} final norm", self.states)

    def _positions(self, name: str) -> list[Part]:
        lines = []
        if self.position is not None:
            lines.append(self.position.line(name, self.width))
        if self.relative is not None:
            lines.append(self.relative.line(name, self.blocks[0].attention, self.dim))
        return [line for line in lines if line.parameters] or lines[:1]

    def _distances(self, name: str, n: int) -> Iterator[Part]:
        """What a relative position has, and does, in each layer."""
        if self.relative is None:
            return
        total = flops = quadratic = 0
        seen: set[int] = set()
        for i, block in zip(self.share or range(len(self.blocks)), self.blocks, strict=True):
            part = block.attention
            keys = part.mixer.keys(n, self.causal)
            flops += self.relative.flops(part, self.dim, keys)
            quadratic += self.relative.flops(part, self.dim, keys)
            quadratic -= self.relative.flops(part, self.dim, 0)
            total += 0 if i in seen else self.relative.of_layer(part, self.dim)
            seen.add(i)
        if total or flops:
            text = self.relative.formula(self.blocks[0].attention, self.dim)
            yield Part(name, f"{len(seen)} × ({text})", total, flops, quadratic)

    def _layers(self, name: str, n: int) -> Iterator[Part]:
        """Layers of one kind in one line: shared weights count once, their work each time."""
        sums: dict[str, Part] = {}
        texts: dict[str, Counter[str]] = {}  # of each line, what it counts how often
        share = self.share or tuple(range(len(self.blocks)))
        seen: set[int] = set()
        for i, block in zip(share, self.blocks, strict=True):
            for line in block.lines(self.dim, n, self.causal):
                before = sums.get(line.name, Part(line.name, "", 0))
                texts.setdefault(line.name, Counter())[line.formula] += i not in seen
                sums[line.name] = Part(
                    line.name,
                    line.formula,
                    before.parameters + (0 if i in seen else line.parameters),
                    before.flops + line.flops,
                    before.quadratic + line.quadratic,
                )
            seen.add(i)
        for line in sums.values():
            text = " + ".join(f"{n} × ({formula})" for formula, n in texts[line.name].items())
            yield replace(line, name=f"{name} {line.name}", formula=text)

    def _common(self, name: str) -> Iterator[Part]:
        """What layers that mix alike have together."""
        for mixer, attention in {b.attention.mixer: b.attention for b in self.blocks}.items():
            if parameters := mixer.common(attention, self.dim):
                yield plain_line(f"{name} shared by layers", parameters)
