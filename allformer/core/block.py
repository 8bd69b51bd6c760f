"""One layer of a stack: attention and feed-forward, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.attention import Attention
from allformer.core.feed_forward import Feed
from allformer.core.norm import make_norm
from allformer.core.relatives.relative import PLAIN, Relation, Relative
from allformer.core.states import LayerState
from allformer.core.taps import tap


class Step(NamedTuple):
    """A sub-layer: its name, its norm, and what it does to its input."""

    name: str
    norm: nn.Module
    work: Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Post-norm: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x)))."""

    def __init__(
        self, block: config.Block, dim: int, path: str, relative: Relative | None = None
    ) -> None:
        super().__init__()
        self.path = path
        self.pre = block.norm_at == "pre"
        self.dropout = block.dropout
        self.attention = Attention(block.attention, dim, f"{path}.attention", relative=relative)
        self.attention_norm = make_norm(block.norm, dim)
        if block.cross is not None:
            self.cross = Attention(block.cross, dim, f"{path}.cross", cross=True)
            self.cross_norm = make_norm(block.norm, dim)
        self.has_cross = block.cross is not None
        self.feed = Feed(block.feed, dim, f"{path}.feed")
        self.feed_norm = make_norm(block.norm, dim)

    def forward(
        self,
        x: Tensor,
        plan: Any,
        memory: Tensor | None = None,
        memory_plan: Any = None,
        state: LayerState | None = None,
        relation: Relation = PLAIN,
    ) -> Tensor:
        """x … dim → the same shape, one layer further."""
        for step in self.steps(plan, memory, memory_plan, state, relation):
            x = self.join(x, step)
        return x

    def steps(
        self,
        plan: Any,
        memory: Tensor | None = None,
        memory_plan: Any = None,
        state: LayerState | None = None,
        relation: Relation = PLAIN,
    ) -> list[Step]:
        """The sub-layers in order, for whoever joins them in another way (reversible layers)."""
        look = partial(self.attention, plan=plan, state=state, relation=relation)
        steps = [Step("attention", self.attention_norm, look)]
        if self.has_cross:
            across = partial(self.cross, plan=memory_plan, memory=memory, state=state)
            steps.append(Step("cross", self.cross_norm, across))
        return [*steps, Step("feed", self.feed_norm, self.feed)]

    def join(self, x: Tensor, step: Step) -> Tensor:
        """One sub-layer with its residual and its norm."""
        added, normed = f"{step.name}_added", f"{step.name}_norm"
        if self.pre:
            h = step.work(tap(self, normed, step.norm(x)))
            return tap(self, added, x + F.dropout(h, self.dropout, self.training))
        h = tap(self, added, x + F.dropout(step.work(x), self.dropout, self.training))
        return tap(self, normed, step.norm(h))
