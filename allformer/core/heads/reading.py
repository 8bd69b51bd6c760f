"""Where an answer begins and ends, and where it cannot: in the question.

Legend: B batch, T length, dim model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.dropout import drop
from allformer.core.feed_forward import Feed
from allformer.core.heads.spans import SpanHead
from allformer.core.inputs import Side
from allformer.core.layout import Layout
from allformer.core.norm import make_norm
from allformer.core.registry import implements
from allformer.core.taps import tap

BARRED = 1e6  # taken from the scores of what cannot be the answer, as the reference does


@implements(config.ReadingHead)
class ReadingHead(SpanHead):
    """norm(x + FFN(x)), then two scores for each token: … dim → … 2."""

    def __init__(
        self, head: config.ReadingHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.feed = Feed(head.feed, stack.dim, f"{path}.feed")
        self.norm = make_norm(head.norm, stack.dim)

    def forward(self, hidden: Tensor) -> Tensor:
        h = self.feed(drop(hidden, self.dropout, self.training))
        h = drop(h, self.dropout, self.training)
        return tap(self, "logits", self.out(tap(self, "normed", self.norm(hidden + h))))

    def complete(self, side: Side) -> Side:
        """Token types, where none are given: the question has the first, the text the second."""
        ids = side.inputs.get("input_ids")
        if ids is None or "token_type_ids" in side.inputs or self.stack.source.types < 2:
            return side
        grid = side.layout.to_grid(ids) if side.ids is None else side.ids
        types = side.layout.lay((~self._question(grid)).long())
        return side._replace(inputs={**side.inputs, "token_type_ids": types})

    def on_grid(self, states: Tensor, layout: Layout, ids: Tensor | None) -> Tensor:
        scores = super().on_grid(states, layout, ids)
        if ids is None:  # vectors alone do not tell where the question ends
            return scores
        barred = self._question(ids)
        barred[:, 0] = False  # says that there is no answer
        return scores - BARRED * barred[..., None].to(scores.dtype)

    def _question(self, ids: Tensor) -> Tensor:
        """B T: up to the first `sep_id`, or the first token alone where there is none."""
        end = ids.eq(self.config.sep_id).int().argmax(-1, keepdim=True)
        return torch.arange(ids.shape[1], device=ids.device) <= end
