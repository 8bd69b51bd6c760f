"""Scores over the vocabulary.

Legend: B batch, T length, N packed tokens, dim model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.activation import ACT
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.loss import (
    IGNORE,
    Sums,
    check_targets,
    entropy_sums,
    linear_cross_entropy,
)
from allformer.core.matmul import matmul
from allformer.core.norm import make_norm
from allformer.core.registry import implements
from allformer.core.table import Embedding
from allformer.core.taps import tap


@implements(config.LMHead)
class LMHead(Head):
    """logits = h Wᵀ (+ b), where W is the target embedding when tied (paper, section 3.4)."""

    writes = True
    placed = False  # what it scores depends on where a state stands

    def __init__(
        self,
        head: config.LMHead,
        stack: config.Stack,
        path: str,
        table: Embedding,
        ahead: bool = False,
    ) -> None:
        super().__init__(head, stack, path)
        self.ahead = ahead
        vocab, width = head.words(stack), table.weight.shape[1]
        dim = stack.states
        self.transform = None
        if head.transform is not None:
            self.transform = Transform(head.transform, dim, width, f"{path}.transform")
            dim = width
        self.scale = head.scale
        self.table = table if head.tied else OutputMatrix(vocab, dim)
        self.bias = nn.Parameter(torch.zeros(vocab)) if head.bias else None
        if head.offset:
            self.register_buffer("offset", torch.zeros(vocab))
        self.has_offset = head.offset

    def reset_parameters(self) -> None:
        """Nothing is added at first."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.has_offset:
            nn.init.zeros_(self.offset)  # type: ignore[arg-type]

    def forward(self, hidden: Tensor, where: Tensor | None = None) -> Tensor:
        """… dim → … vocab; `where` is for heads that are `placed`."""
        hidden = self.prepare(hidden)
        scores = matmul(hidden, self.table.weight.to(hidden.dtype), self.addend(hidden.dtype))
        return tap(self, "logits", scores)

    @property
    def vocab(self) -> int:
        """How many words it scores."""
        return int(self.table.weight.shape[0])

    def prepare(self, hidden: Tensor) -> Tensor:
        """What meets the output matrix."""
        if self.transform is not None:
            hidden = self.transform(hidden)
        return hidden if self.scale is None else hidden * self.scale

    def addend(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores: the trained bias and the stored offset."""
        bias = None if self.bias is None else self.bias.to(dtype)
        if not self.has_offset:
            return bias
        offset: Tensor = self.offset.to(dtype)  # type: ignore[assignment]
        return offset if bias is None else bias + offset

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        return {"logits": hidden.layout.to_grid(self(hidden.states))}

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        (name,), logits = self.targets, outputs["logits"]
        check_targets(targets[name], name, tuple(logits.shape[:-1]), logits.shape[-1])
        return entropy_sums(logits, self.aim(targets[name], hidden.keep))

    def aim(self, labels: Tensor, keep: Tensor | None) -> Tensor:
        """What each state has to say, B T: −100 at padding, and where nothing follows.

        Padding is left out on both sides: it is not scored, and does not say the first token.
        """
        if keep is not None:
            labels = labels.masked_fill(~keep, IGNORE)
        if not self.ahead:
            return labels
        labels = torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), IGNORE)], dim=1)
        return labels if keep is None else labels.masked_fill(~keep, IGNORE)

    def score(
        self, hidden: Tensor, targets: Tensor, smoothing: float, z: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Summed loss and NLL of `hidden` N dim against `targets` N, never all logits at once.

        `z` weighs the z-loss. Where few positions have a target (masked words), give those alone.
        """
        bias = self.addend(self.table.weight.dtype) if self.has_offset else self.bias
        return linear_cross_entropy(
            self.prepare(hidden), self.table.weight, bias, targets, smoothing, z=z
        )


class OutputMatrix(Embedding):
    """An output matrix of its own: starts as a table does, and decays as a matrix."""

    decays = ("weight",)


class Transform(nn.Module):
    """norm(act(x W + b)): … dim → … width."""

    def __init__(self, transform: config.Transform, dim: int, width: int, path: str) -> None:
        super().__init__()
        self.path = path
        self.dense = Linear(dim, width)
        self.act = ACT[transform.act]
        self.norm = make_norm(transform.norm, width)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.norm(self.act(self.dense(hidden)))
        return tap(self, "output", out)
