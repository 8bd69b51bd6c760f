"""Heads: what turns hidden states into an answer.

Legend: B batch, T length, N packed tokens, dim model width, L labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.feed_forward import ACT
from allformer.core.linear import Linear
from allformer.core.loss import linear_cross_entropy
from allformer.core.matmul import matmul
from allformer.core.norm import make_norm
from allformer.core.stack import Embedding
from allformer.core.taps import tap
from allformer.errors import ConfigError


class VocabHead(nn.Module):
    """logits = h Wᵀ (+ b), where W is the target embedding when tied (paper, section 3.4)."""

    def __init__(
        self, head: config.LMHead, embedding: Embedding, dim: int, path: str = "head"
    ) -> None:
        super().__init__()
        self.path = path
        vocab, width = embedding.weight.shape
        self.transform = None
        if head.transform is not None:
            self.transform = Transform(head.transform, dim, width, f"{path}.transform")
            dim = width
        self.scale = head.scale
        self.table = embedding if head.tied else Embedding(vocab, dim)
        self.bias = nn.Parameter(torch.zeros(vocab)) if head.bias else None
        if head.offset:
            self.register_buffer("offset", torch.zeros(vocab))
        self.has_offset = head.offset

    def forward(self, hidden: Tensor) -> Tensor:
        """… dim → … vocab"""
        hidden = self.prepare(hidden)
        bias = self.addend(hidden.dtype)
        return matmul(hidden, self.table.weight.to(hidden.dtype), bias)

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

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Summed loss and NLL of packed `hidden` N dim against `targets` N; see `core.loss`."""
        bias = self.addend(self.table.weight.dtype) if self.has_offset else self.bias
        return linear_cross_entropy(
            self.prepare(hidden), self.table.weight, bias, targets, smoothing
        )


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


class Pooler(nn.Module):
    """act(h₀ W + b), from the first token's state: B T dim → B dim."""

    def __init__(self, pool: config.Pool, dim: int, path: str = "pool") -> None:
        super().__init__()
        self.path = path
        self.dense = Linear(dim, dim)
        self.act = ACT[pool.act]

    def forward(self, hidden: Tensor) -> Tensor:
        return tap(self, "output", self.act(self.dense(hidden[:, 0])))


class Classifier(nn.Module):
    """Scores over labels: … dim → … L."""

    def __init__(self, head: config.ClassHead, dim: int, path: str = "head") -> None:
        super().__init__()
        self.config, self.path = head, path
        self.dense = None if head.dense is None else Linear(dim, dim)
        self.act = ACT[head.dense or "identity"]
        self.out = Linear(dim, len(head.labels), bias=head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, self.config.dropout, self.training)
        if self.dense is not None:
            x = tap(self, "dense", self.act(self.dense(x)))
            x = F.dropout(x, self.config.dropout, self.training)
        return tap(self, "logits", self.out(x))

    def pick(self, hidden: Tensor, ids: Tensor, tokens: config.Tokens) -> Tensor:
        """The state that speaks for the sequence, B T dim → B dim, as `at` says."""
        if self.config.at == "first":
            return hidden[:, 0]
        places = torch.arange(ids.shape[1], device=ids.device)
        if self.config.at == "eos":
            ends = ids.eq(tokens.eos_id or 0)  # the config refuses None
            if not bool(ends.any(-1).all()):
                raise ConfigError(
                    f"input_ids has a row without the token {tokens.eos_id} (Tokens.eos_id), whose "
                    f"state is classified; end every text with it"
                )
            last = (places * ends).argmax(-1)
        elif tokens.pad_id is None:
            if ids.shape[0] > 1:
                raise ConfigError(
                    "Tokens.pad_id=None: the last token of each text of a batch cannot be told "
                    "from padding; set pad_id, or classify one text at a time"
                )
            last = places[-1:]
        else:
            last = (places * (ids != tokens.pad_id)).argmax(-1)
        return hidden[torch.arange(ids.shape[0], device=ids.device), last]


class SpanScores(nn.Module):
    """Two scores for each token, begin and end of an answer: … dim → … 2."""

    def __init__(self, head: config.SpanHead, dim: int, path: str = "head") -> None:
        super().__init__()
        self.path, self.dropout = path, head.dropout
        self.out = Linear(dim, 2, bias=head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = F.dropout(hidden, self.dropout, self.training)
        return tap(self, "logits", self.out(hidden))


class Pretrainer(nn.Module):
    """Both of BERT's pre-training heads."""

    def __init__(self, head: config.Several, embedding: Embedding, dim: int) -> None:
        super().__init__()
        words, pair = head.part("words"), head.part("pair")
        assert isinstance(words, config.LMHead)
        assert isinstance(pair, config.ClassHead)
        self.words = VocabHead(words, embedding, dim, "head.words")
        self.pair = Classifier(pair, dim, "head.pair")


AnyHead = VocabHead | Classifier | SpanScores | Pretrainer


def make_head(head: config.Head | None, embedding: Embedding, dim: int) -> AnyHead | None:
    """The module for a `head` slot."""
    if isinstance(head, config.LMHead):
        return VocabHead(head, embedding, dim)
    if isinstance(head, config.ClassHead):
        return Classifier(head, dim)
    if isinstance(head, config.SpanHead):
        return SpanScores(head, dim)
    if isinstance(head, config.Several):
        return Pretrainer(head, embedding, dim)
    return None
