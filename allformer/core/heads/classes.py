"""Scores over labels, for each token or for the whole text.

Legend: B batch, T length, dim model width, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.activation import ACT
from allformer.core.dropout import drop
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.loss import IGNORE, Sums, check_targets, class_sums, entropy_sums
from allformer.core.pooling import at, last, mean_of
from allformer.core.registry import implements
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.ClassHead)
class ClassHead(Head):
    """… dim → … L, from the state that `at` names."""

    def __init__(
        self, head: config.ClassHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.reads_first = head.at in ("first", "first+patches")
        self.front = 1 if head.at in ("first", "pool") else None  # a pooler reads the first token
        wide = head.reads(stack)
        self.dense = None if head.dense is None else Linear(wide, stack.dim)
        self.act = ACT[head.dense or "identity"]
        width = wide if head.dense is None else stack.dim
        self.out = Linear(width, len(head.labels), bias=head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = drop(x, self.config.dropout, self.training)
        if self.dense is not None:
            x = tap(self, "dense", self.act(self.dense(x)))
            x = drop(x, self.config.dropout, self.training)
        return tap(self, "logits", self.out(x))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        if self.config.at == "token":
            return {"logits": hidden.layout.to_grid(self(hidden.states))}
        return {"logits": self(self.read(hidden))}

    def read(self, hidden: Hidden) -> Tensor:
        """The state that speaks for the text or the image, B dim (or two of them, B 2·dim)."""
        if self.config.at == "pool":
            assert hidden.pooled is not None  # the config refuses it
            return hidden.pooled
        if self.config.at == "first":
            return hidden.grid[:, 0]
        if self.config.at == "mean":
            return tap(self, "mean", mean_of(hidden.grid, hidden.keep))
        if "patches" in self.config.at:
            source: Any = self.stack.source
            mean = tap(self, "mean", hidden.grid[:, source.patches].mean(1))
            alone = self.config.at == "patches"
            return mean if alone else torch.cat([hidden.grid[:, 0], mean], -1)
        return at(hidden.grid, self._last(hidden))

    def _last(self, hidden: Hidden) -> Tensor:
        """The place of the last end token, or of the last token that is not padding, B.

        As the reference does, both are looked for among the ids, whatever the mask says; where
        the source reads no tokens, the mask tells.
        """
        tokens, ids, width = self.stack.source, hidden.ids, hidden.grid.shape[1]
        if self.config.at == "eos":
            ends = None if ids is None else ids.eq(tokens.eos_id or 0)  # the config refuses None
            if ends is None or not bool(ends.any(-1).all()):
                raise ConfigError(
                    f"input_ids has a row without the token {tokens.eos_id} (Tokens.eos_id), whose "
                    f"state is classified; end every text with it"
                )
            return last(ends)
        if not tokens.vocab and hidden.keep is not None:
            return last(hidden.keep)
        if ids is None or tokens.pad_id is None:
            if hidden.grid.shape[0] > 1 and ids is not None:
                raise ConfigError(
                    "Tokens.pad_id=None: the last token of each text of a batch cannot be told "
                    "from padding; set pad_id, or classify one text at a time"
                )
            return hidden.grid.new_full((hidden.grid.shape[0],), width - 1).long()
        return last(ids != tokens.pad_id)

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        (name,), logits = self.targets, outputs["logits"]
        labels, classes = targets[name], logits.shape[-1]
        if self.config.at == "token":
            check_targets(labels, name, tuple(logits.shape[:-1]), classes)
            keep = hidden.keep
            return entropy_sums(
                logits, labels if keep is None else labels.masked_fill(~keep, IGNORE)
            )
        return class_sums(logits, labels, self.config.problem, name)


class Pool(nn.Module):
    """act(h₀ W + b), or act(h₀), from the first token's state: B T dim → B dim."""

    def __init__(self, pool: config.Pool, dim: int, path: str = "pool") -> None:
        super().__init__()
        self.path = path
        self.dense = Linear(dim, dim) if pool.dense else None
        self.act = ACT[pool.act]

    def forward(self, hidden: Tensor) -> Tensor:
        first = hidden[:, 0]
        return tap(self, "output", self.act(first if self.dense is None else self.dense(first)))
