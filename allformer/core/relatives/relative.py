"""Positions inside the attention: one interface for all.

A relative position turns queries and keys, or adds to the scores, or both. Its module stands at the
stack; `Relation` is what it works out for one call, once for all layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.places import Places


class Relation:
    """What the layers of a stack use. The plain one turns nothing and adds nothing."""

    turns = False  # queries and keys
    adds = False  # to the scores

    def turn(self, heads: Tensor) -> Tensor:
        """Queries and keys, … heads D, by the places where they stand."""
        return heads

    def turn_whole(self, fused: Tensor, turned: int) -> Tensor | None:
        """The first `turned` heads of the fused projection turned in one pass, values beside them;
        None: there is no kernel for it here."""
        return None

    def bias(self, places: Places) -> Tensor | None:
        """What is added to the scores of every layer alike, (R or 1) H T S."""
        return None

    def scores(self, q: Tensor, places: Places, part: nn.Module | None) -> Tensor:
        """What is added to the scores of one layer, B H T S: may depend on its queries (B H T D)
        and on what `Relative.part` has put into it."""
        raise NotImplementedError


PLAIN = Relation()


class Relative(nn.Module):
    """The module for a `relative` slot: `Rotary(config.Rotary(), stack, "decoder")`."""

    def __init__(self, relative: Any, stack: config.Stack, path: str) -> None:
        super().__init__()
        self.config, self.path = relative, path

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Relation:
        """The relation of a call; `positions` (T, R T or N) are the numbers of the new tokens."""
        raise NotImplementedError

    def part(self, attention: config.Attention, dim: int) -> nn.Module | None:
        """Parameters that each layer has of its own."""
        return None
