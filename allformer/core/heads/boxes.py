"""Classes and boxes of the objects that queries have found.

Legend: L layers, B images, T tokens, Q queries, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.set_loss import Guesses, Parts, Wanted, make_wanted, set_loss
from allformer.core.taps import tap


class Layers(nn.Module):
    """Linear layers with relu in between: `Layers(256, 4, depth=3)`."""

    def __init__(self, dim: int, outputs: int, depth: int) -> None:
        super().__init__()
        sizes = [dim] * depth + [outputs]
        self.layers = nn.ModuleList(Linear(n, m) for n, m in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x if i == 0 else F.relu(x))
        return x


@implements(config.BoxHead)
class BoxHead(Head):
    """B T dim → logits B Q C+1 (the last: nothing), pred_boxes B Q 4 (centre, size, as shares)."""

    gives = ("logits", "pred_boxes")

    def __init__(self, head: config.BoxHead, stack: config.Stack, path: str, **given: Any) -> None:
        super().__init__(head, stack, path)
        self.reads_layers = head.loss.auxiliary
        self.classes = Layers(stack.states, len(head.labels) + 1, head.class_depth)
        self.boxes = Layers(stack.states, 4, head.depth)
        source = stack.source
        self.queries = source.behind if isinstance(source, config.Patches) else None

    def guess(self, states: Tensor) -> Guesses:
        """What the queries among the states say, … T dim → … Q C+1 and … Q 4.

        In fp32 at least: bf16 would put an edge of a box a 256th of the image aside.
        """
        x = widen(states if self.queries is None else states[..., -self.queries :, :])
        return Guesses(self.classes(x), self.boxes(x).sigmoid())

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        logits, boxes = self.guess(hidden.grid)
        return {"logits": tap(self, "logits", logits), "pred_boxes": tap(self, "boxes", boxes)}

    def parts(self, guesses: Guesses, wanted: Wanted, layers: Tensor | None) -> Parts:
        """The loss and what it is made of; of the `layers` before the last one too, where there
        are any."""
        earlier = [] if layers is None else [self.guess(x) for x in layers[:-1]]
        return set_loss([*earlier, guesses], wanted, self.config.loss)

    def loss(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Any], hidden: Hidden
    ) -> Tensor:
        """As transformers has it; `labels` are a list with class_labels and boxes of each image."""
        guesses = Guesses(outputs["logits"], outputs["pred_boxes"])
        wanted = make_wanted(targets["labels"], guesses.boxes)
        return self.parts(guesses, wanted, hidden.layers).total
