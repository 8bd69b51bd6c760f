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
from allformer.core.states import State
from allformer.errors import ConfigError


class Relation:
    """What the layers of a stack use. The plain one turns nothing and adds nothing."""

    turns = False  # queries and keys
    adds = False  # to the scores
    own: Tensor | None = None  # added before queries and keys are projected
    other: Tensor | None = None  # and before the keys of what is looked at across

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

    def query(self, q: Tensor, part: nn.Module | None) -> Tensor:
        """What meets the keys of one layer in the place of its queries (B H T D), which `scores`
        has had as they are."""
        return q

    def scores(self, q: Tensor, places: Places, part: nn.Module | None) -> Tensor:
        """What is added to the scores of one layer, B H T S: may depend on its queries (B H T D)
        and on what `Relative.part` has put into it."""
        raise NotImplementedError


PLAIN = Relation()


class Extra:
    """What a relation does in one layer: `extra(q, places)` is added to its scores, and
    `extra.query(q)` meets its keys."""

    def __init__(self, relation: Relation, part: nn.Module | None) -> None:
        self.relation, self.part = relation, part

    def __call__(self, q: Tensor, places: Places) -> Tensor:
        return self.relation.scores(q, places, self.part)

    def query(self, q: Tensor) -> Tensor:
        """B H T D → the same."""
        return self.relation.query(q, self.part)


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

    def new_state(
        self,
        usual: State,
        memory: int | None = None,
        given: Tensor | None = None,
        real: Tensor | None = None,
    ) -> State:
        """What remembers for a layer; `usual` is what its mixer asks for.

        Of earlier segments, `memory` tokens are remembered (None: as the config says), at first
        those that are `given`, B M dim, of which `real` B M says who stands there.
        """
        if memory is not None or given is not None:
            refuse_memory(memory, given)
        return usual


def refuse_memory(memory: int | None, given: object) -> None:
    """Say that a stack remembers no segments."""
    what = "mems given" if memory is None else f"mem_len={memory}"
    raise ConfigError(
        f"{what}, but this model remembers no earlier segments; leave it out, or use one with "
        f"Stack.relative=XLRelative(memory=…)"
    )
