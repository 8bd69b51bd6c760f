"""Tokens: a table of vectors, scaled, with token types added."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from allformer import config
from allformer.core.dropout import drop
from allformer.core.inputs import Side, check_ids
from allformer.core.position import count_ids
from allformer.core.registry import implements
from allformer.core.sources.source import Source
from allformer.core.table import Embedding
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.Tokens)
class Tokens(Source):
    """E[ids] · √dim + PE[positions], then dropout (paper, section 3.4 and 3.5)."""

    takes = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")

    def __init__(self, stack: config.Stack, path: str, table: Embedding | None = None) -> None:
        super().__init__(stack, path)
        tokens: config.Tokens = self.config
        self.embedding = table or self.make_table()
        self.scale = math.sqrt(stack.width) if tokens.scale else 1.0
        self.fixed = tokens.pad_id if tokens.pad_fixed else None
        self.types = Embedding(tokens.types, stack.width) if tokens.types else None
        self.finish()

    def make_table(self) -> Embedding:
        """A vector for each token."""
        return Embedding(self.config.vocab, self.stack.width)

    def check(self, inputs: Mapping[str, Tensor], prefix: str = "") -> tuple[int, int]:
        ids, embeds = inputs.get("input_ids"), inputs.get("inputs_embeds")
        if (ids is None) == (embeds is None):
            both = "neither" if ids is None else "both"
            raise ConfigError(
                f"{both} of {prefix}input_ids and {prefix}inputs_embeds given; give one of them"
            )
        if ids is not None:
            check_ids(ids, f"{prefix}input_ids", None, self.config.vocab)
            shape = tuple(ids.shape)
        else:
            assert embeds is not None
            shape = tuple(embeds.shape[:2])
            if embeds.ndim != 3 or embeds.shape[2] != self.stack.width or not embeds.numel():
                raise ConfigError(
                    f"{prefix}inputs_embeds={tuple(embeds.shape)} must be rows × tokens × "
                    f"{self.stack.width}; give vectors of the embedding's width"
                )
        types, where = inputs.get("token_type_ids"), inputs.get("position_ids")
        if types is not None and self.types is None:
            raise ConfigError(
                f"token_type_ids={tuple(types.shape)} given, but Tokens.types=0: this "
                f"model knows no segments; leave them out"
            )
        if types is not None:
            check_ids(types, "token_type_ids", shape, self.config.types)
        if where is not None and tuple(where.shape) != shape[1:]:  # one row for all will do
            check_ids(where, f"{prefix}position_ids", shape, None)
        return shape[0], shape[1]

    def vectors(self, side: Side) -> Tensor:
        """The tokens' vectors (or those that the caller gives), and those of their types."""
        x = side.inputs.get("inputs_embeds")
        if x is None:
            x = self.embedding(side.inputs["input_ids"], self.fixed) * self.scale
        x = drop(tap(self, "tokens", x), self.config.dropout, self.training)
        if self.types is None:
            return x
        kinds = side.inputs.get("token_type_ids")
        if kinds is None:
            kinds = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        return x + tap(self, "types", self.types(kinds))

    def positions(self, side: Side, device: torch.device) -> Tensor:
        position = self.stack.position
        if position is None or position.count != "ids":
            return super().positions(side, device)
        if side.ids is None:  # packed rows have no padding; vectors alone do not tell of any
            return side.layout.positions(device, "kept" if side.layout.packed else "all")
        assert self.config.pad_id is not None  # the config refuses it
        return side.layout.lay(count_ids(side.ids, self.config.pad_id))
