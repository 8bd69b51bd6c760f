"""Words, then codes of an image, in one table; and where each of them stands.

Legend: P positions, D model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.inputs import Side
from allformer.core.position import check_length
from allformer.core.registry import implements
from allformer.core.sources.tokens import Tokens
from allformer.core.table import Embedding
from allformer.core.taps import tap


@implements(config.Joined)
class Joined(Tokens):
    """E[ids], and where the text has come to its end a vector of that place."""

    def __init__(self, stack: config.Stack, path: str, table: Embedding | None = None) -> None:
        super().__init__(stack, path, table)
        pads = self.config.pad_id is not None
        self.empty = Embedding(self.config.length, stack.width) if pads else None

    def vectors(self, side: Side) -> Tensor:
        x, ids = super().vectors(side), side.inputs.get("input_ids")
        if self.empty is None or ids is None:
            return x
        place = side.layout.positions(x.device, "all").clamp(max=self.config.length - 1)
        own = self.empty(place) * self.scale  # P D
        return tap(self, "filled", torch.where((ids == self.config.pad_id)[..., None], own, x))


@implements(config.TextAndPlane)
class TextAndPlane(nn.Module):
    """A vector for each place of the text; behind it, that of a row plus that of a column."""

    first = 0

    def __init__(self, position: config.TextAndPlane, dim: int) -> None:
        super().__init__()
        self.config = position
        sizes = {"text": position.text, "rows": position.shape[0], "columns": position.shape[1]}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(size, dim)))

    def reset_parameters(self) -> None:
        """As every table starts."""
        for table in self.parameters():
            nn.init.normal_(table, std=table.shape[1] ** -0.5)

    def forward(self, positions: Tensor, bound: int | None, dtype: torch.dtype) -> Tensor:
        """`positions` (any shape, each below `bound` if that is known) → their vectors."""
        c = self.config
        if bound is None or bound > c.longest:
            check_length(positions, bound, c.longest, "TextAndPlane.shape")
        # All of them first: a division in the look-up of a compiled graph is more than torch takes.
        plane = (self.rows[:, None] + self.columns).flatten(0, 1)  # type: ignore[index, operator]
        return F.embedding(positions, torch.cat([self.text, plane])).to(dtype)  # type: ignore[list-item]
