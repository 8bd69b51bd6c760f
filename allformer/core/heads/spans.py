"""Where an answer begins and ends in the text.

Legend: B batch, T length, dim model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from allformer import config
from allformer.core.dropout import drop
from allformer.core.heads.head import Head, Hidden
from allformer.core.layout import Layout
from allformer.core.linear import Linear
from allformer.core.loss import Sums, check_targets, span_sums
from allformer.core.registry import implements
from allformer.core.taps import tap


@implements(config.SpanHead)
class SpanHead(Head):
    """Two scores for each token, begin and end: … dim → … 2."""

    gives = ("start_logits", "end_logits")
    targets = ("start_positions", "end_positions")
    reads_padding = True

    def __init__(self, head: config.SpanHead, stack: config.Stack, path: str, **given: Any) -> None:
        super().__init__(head, stack, path)
        self.dropout = head.dropout
        self.out = Linear(stack.states, 2, bias=head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = drop(hidden, self.dropout, self.training)
        return tap(self, "logits", self.out(hidden))

    def on_grid(self, states: Tensor, layout: Layout, ids: Tensor | None) -> Tensor:
        """B T 2, from states in a layout; `ids` are the text's, B T, for those who look for a
        token."""
        return layout.to_grid(self(states))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        starts, ends = self.on_grid(hidden.states, hidden.layout, hidden.ids).unbind(-1)
        return {"start_logits": starts, "end_logits": ends}

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        first, last = (targets[name] for name in self.targets)
        for name in self.targets:
            check_targets(targets[name].flatten(), name, (len(starts),), None)
        return span_sums(starts, ends, first, last)
