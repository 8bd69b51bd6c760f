"""Heads that say of each pixel, or of each mask, what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Activation, Config, Natural, Positive
from allformer.config.block import Block
from allformer.config.check import Rule, above, refuse
from allformer.config.counting import Part, dense
from allformer.config.head import Head
from allformer.config.mixer import Full
from allformer.config.norm import Norm
from allformer.config.patches import Patches
from allformer.config.stack import Stack

_NAMED = Rule(bool, "must be a tuple of at least one name", 'try ("cat", "dog")')
Labels = Annotated[tuple[str, ...], _NAMED]
Layers = Annotated[
    tuple[Block, ...], Rule(bool, "must be a tuple of at least one Block", "try repeat(block, 2)")
]
Weight = Annotated[float, Rule(lambda x: x >= 0, "must not be negative", "try 1.0")]


class MaskHead(Head, slot=True):
    """What reads the patches of an image and gives masks over `labels`."""

    labels: tuple[str, ...]
    blocks: tuple[Block, ...] = ()  # of its own

    def fits(self, stack: Stack) -> None:
        if not isinstance(stack.source, Patches):
            must = "are found in patches of an image, which its stack does not read"
            refuse(self, "labels", must, "give the stack source=Patches(…)")
        for block in self.blocks:
            if block.cross is not None or block.attention.mixer != Full():
                must = "must look at all tokens, and at nothing else"
                refuse(self, "blocks", must, "give each mixer=Full() and cross=None")
            if block.attention.head_dim is None and stack.states % block.attention.heads:
                must = f"have heads={block.attention.heads}, which must divide {stack.states}"
                refuse(self, "blocks", must, "give another number of heads")

    def layers(self, stack: Stack, name: str) -> Iterator[Part]:
        """The lines of its own layers in the count; of each kind one."""
        n = stack.source.tokens_each or 0
        sums: dict[str, Part] = {}
        for block in self.blocks:
            for line in block.lines(stack.states, n, causal=False):
                old = sums.get(line.name, Part(line.name, "", 0))
                sums[line.name] = Part(
                    line.name,
                    f"{old.formula} + {line.formula}" if old.formula else line.formula,
                    old.parameters + line.parameters,
                    old.flops + line.flops,
                    old.quadratic + line.quadratic,
                )
        for line in sums.values():
            yield Part(f"{name} {line.name}", line.formula, *_figures(line))

    def parameters(self, stack: Stack) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))


def _figures(line: Part) -> tuple[int, int, int]:
    return line.parameters, line.flops, line.quadratic


@dataclass(frozen=True)
class LinearMasks(MaskHead):
    """Scores over `labels` for `cells` × `cells` places of each patch, by one matrix.

    `cells=1` is the linear decoder of Segmenter (Strudel et al., 2021): the scores of the patches,
    resized to the image, so that no border is finer than a patch. With as many cells as the patch
    has pixels in a row, each pixel has scores of its own.
    """

    labels: Labels
    cells: Positive = 1

    def outputs(self) -> int:
        """Numbers of each patch."""
        return len(self.labels) * self.cells**2

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        wide, many = stack.states, self.outputs()
        yield Part(name, f"d·{many} + {many}", dense(wide, many), 2 * wide * many)


@dataclass(frozen=True)
class ClassMasks(MaskHead):
    """Segmenter's mask transformer: a vector of each label goes through `blocks` beside the
    patches; a patch's score for a label is the cosine of both, normalised over the labels.
    """

    labels: Labels
    blocks: Layers
    norm: Norm = Norm()

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        wide, many = stack.states, len(self.labels)
        yield Part(f"{name} in", "d² + d", dense(wide, wide), 2 * wide**2)
        yield Part(f"{name} labels", f"{many}·d", many * wide)
        yield from self.layers(stack, name)
        own = self.norm.parameters(wide) + self.norm.parameters(many)
        yield Part(f"{name} norms", f"of d and of {many}", own)
        yield Part(f"{name} out", "2d²", 2 * wide**2, 2 * wide**2 + 2 * wide * many)


@dataclass(frozen=True)
class MaskLoss(Config):
    """How masks without an order are learnt: the cheapest pairs of predictions and targets, then
    what each pair costs (Cheng et al., 2021).

    The weights of the class, of the mask by its pixels and of the mask by its overlap (dice) are
    those of the costs too; `nothing` is that of the class of predictions that have no target. Masks
    are compared at `points` places: `importance` of them the least certain of `oversample` times as
    many, the others anywhere.
    """

    classes: Weight = 2.0
    mask: Weight = 5.0
    dice: Weight = 5.0
    nothing: Weight = 0.1
    points: Positive = 12544
    oversample: Annotated[float, Rule(lambda x: x >= 1, "must be at least 1", "EoMT has 3.0")] = 3.0
    importance: Annotated[
        float, Rule(lambda x: 0 <= x <= 1, "must be a share, 0 to 1", "EoMT has 0.75")
    ] = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.classes or self.mask or self.dice):
            refuse(self, "classes", "is zero as mask and dice are: all pairs cost alike", "try 2.0")


@dataclass(frozen=True)
class QueryMasks(MaskHead):
    """EoMT (Kerssies et al., 2025): `queries` join the tokens of an image for the last `blocks`;
    each gives a class, or none, and a mask: its dot product with the patches, upscaled.

    The stack below has all layers but these and no final norm; `norm` is that of what is read here.
    `upscale` times the patches' plane is doubled by a transposed convolution, `act`, a convolution
    within each feature, and a norm. In training a query looks at those patches alone at which its
    mask so far is, with a probability that is annealed away.
    """

    labels: Labels
    blocks: Layers
    queries: Positive = 200
    norm: Norm = Norm("layer", 1e-6)
    upscale: Natural = 2
    act: Activation = "gelu"
    loss: MaskLoss = MaskLoss()
    upscale_eps: Annotated[float, above(0, "EoMT has 1e-6")] = 1e-6

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        wide, many = stack.states, len(self.labels) + 1
        yield Part(f"{name} queries", f"{self.queries}·d", self.queries * wide)
        yield from self.layers(stack, name)
        yield self.norm.line(f"{name} norm", wide)
        yield Part(f"{name} classes", f"d·{many} + {many}", dense(wide, many))
        yield Part(f"{name} masks", "3·(d² + d)", 3 * dense(wide, wide))
        if self.upscale:
            each = 4 * wide**2 + wide + 9 * wide + 2 * wide
            yield Part(f"{name} upscaling", f"{self.upscale}·(4d² + 12d)", self.upscale * each)
