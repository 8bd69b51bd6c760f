"""What a source is: everything before the layers of a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.dropout import drop
from allformer.core.inputs import Side
from allformer.core.linear import Linear
from allformer.core.norm import make_norm
from allformer.core.registry import module_for
from allformer.core.taps import tap


class Source(nn.Module):
    """The module for a `source` slot: vectors, then positions, norm, dropout, as the stack says."""

    takes: tuple[str, ...] = ()  # the inputs that it reads, by their names; the first alone is due
    per_token = True  # its inputs have an entry for each token, so that padding can be left out
    masked = True  # an attention_mask has one too; else the source alone knows what it means

    def __init__(self, stack: config.Stack, path: str) -> None:
        super().__init__()
        self.stack, self.path = stack, path
        self.config: Any = stack.source
        self.delta: Any = None  # adapters: `delta.lengthen(source, side)` has learned tokens first

    def finish(self) -> None:
        """Make what follows the vectors; called last, so that weights start in reading order."""
        stack, width = self.stack, self.stack.width
        self.position = None
        if stack.position is not None:
            self.position = module_for(stack.position)(stack.position, width)
        self.norm = None if stack.source_norm is None else make_norm(stack.source_norm, width)
        self.widen = None if stack.source.width is None else Linear(width, stack.dim)

    def check(self, inputs: Mapping[str, Tensor], prefix: str = "") -> tuple[int, int]:
        """Refuse wrong inputs (errors say `prefix` before a name); rows and width of the others."""
        raise NotImplementedError

    def vectors(self, side: Side) -> Tensor:
        """A vector for each token of the side, … width."""
        raise NotImplementedError

    def positions(self, side: Side, device: torch.device) -> Tensor:
        """The number of each token, as `position` counts."""
        count = self.stack.position.count if self.stack.position is not None else "all"
        return side.layout.positions(device, count)

    def forward(self, side: Side, dtype: torch.dtype | None = None) -> Tensor:
        """The hidden states that the first layer reads: B T dim, or N dim."""
        x = self.vectors(side)
        if self.position is not None:
            x = x + tap(self, "positions", self._positions(side, x))
        before = self.stack.dropout_at == "summed"
        if before:
            x = drop(x, self.stack.dropout, self.training)
        if self.norm is not None:
            x = self.norm(x)
        x = tap(self, "embedded", x.to(dtype or x.dtype))  # from here on the compute dtype
        if not before:
            x = drop(x, self.stack.dropout, self.training)
        return x if self.widen is None else tap(self, "widened", self.widen(x))

    def _positions(self, side: Side, x: Tensor) -> Tensor:
        given = side.inputs.get("position_ids")
        assert self.position is not None
        bound: int | None
        if given is None:
            where, bound = self.positions(side, x.device), side.layout.total
        else:
            where, bound = given - self.position.first, side.bound
        ahead = side.layout.ahead
        if ahead is not None and self.per_token:
            where, bound = side.layout.behind(where), None if bound is None else bound + ahead.most
        vectors = self.position(where, bound, x.dtype)
        if hasattr(self.position, "thin"):  # dropout of its own
            vectors = self.position.thin(vectors, where, side.layout)
        assert isinstance(vectors, Tensor)
        return vectors
