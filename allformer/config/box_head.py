"""The head that finds objects: a class and a box from each query's state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Config, Positive
from allformer.config.check import Rule, above, refuse
from allformer.config.counting import Part, dense
from allformer.config.head import Head
from allformer.config.patches import Patches
from allformer.config.queries import Queries
from allformer.config.stack import Stack

Weight = Annotated[float, Rule(lambda x: x >= 0, "must be 0 or more", "DETR has 1, 5 and 2")]


@dataclass(frozen=True)
class SetLoss(Config):
    """What a set of guesses costs (DETR, section 3.1): each object is given to one query, so that
    all together cost least; the other queries shall say that there is nothing.

    `match_…` weigh the costs of giving, `box` and `iou` the losses beside the class's; `nothing` is
    how much a query without an object counts. With `auxiliary` each layer's states are scored, not
    the last one's alone.
    """

    match_class: Weight = 1.0
    match_box: Weight = 5.0
    match_iou: Weight = 2.0
    box: Weight = 5.0
    iou: Weight = 2.0
    nothing: Annotated[float, above(0, "DETR has 0.1")] = 0.1
    auxiliary: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.match_class or self.match_box or self.match_iou):
            refuse(self, "match_class", "and all other costs are 0", "DETR has 1, 5 and 2")


@dataclass(frozen=True)
class BoxHead(Head):
    """A class of `labels`, or none, and a box, for each query: the tokens behind the patches
    (YOLOS), or all states of a decoder of queries (DETR).

    Classes are scored by `class_depth` layers, boxes by `depth`, with relu in between; a box is
    centre x, centre y, width and height as shares of the image, by a sigmoid.
    """

    labels: Annotated[
        tuple[str, ...], Rule(bool, "must be a tuple of at least one name", 'try ("cat", "dog")')
    ]
    class_depth: Positive = 3
    depth: Positive = 3
    loss: SetLoss = SetLoss()

    def fits(self, stack: Stack) -> None:
        if isinstance(stack.source, Patches) and stack.source.behind:
            return
        if not isinstance(stack.source, Queries):
            must = "are looked for by queries, which its stack has not"
            refuse(self, "labels", must, "give its Patches behind=100, or use SetDecoder")

    def parameters(self, stack: Stack) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        """Of queries alone, which are few: its work does not matter."""
        wide = stack.states
        for what, count, outputs in (
            ("classes", self.class_depth, len(self.labels) + 1),
            ("boxes", self.depth, 4),
        ):
            text = f"{count - 1} × (d² + d) + d·{outputs} + {outputs}"
            own = (count - 1) * dense(wide, wide) + dense(wide, outputs)
            yield Part(f"{name} {what}", text, own)
