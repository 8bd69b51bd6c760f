"""Learned queries: places for what is to be found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.inputs import Side
from allformer.core.registry import implements
from allformer.core.sources.source import Source


@implements(config.Queries)
class Queries(Source):
    """Zeros for each query, B Q dim; their learned vectors are their positions."""

    per_token = False

    def __init__(self, stack: config.Stack, path: str) -> None:
        super().__init__(stack, path)
        self.weight = nn.Parameter(torch.empty(self.config.count, stack.width))
        self.finish()

    def reset_parameters(self) -> None:
        """N(0, 1), as DETR starts them: a table of torch's own."""
        nn.init.normal_(self.weight)

    def check(self, inputs: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
        return 1, self.config.count

    def vectors(self, side: Side) -> Tensor:
        return self.weight.new_zeros(side.layout.rows, *self.weight.shape)

    def places(self, like: Tensor) -> Tensor:
        """The learned vectors, 1 Q dim."""
        return self.weight.to(like.dtype)[None]
