"""Heads: what turns hidden states into an answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.loss import linear_cross_entropy
from allformer.core.stack import Embedding


class VocabHead(nn.Module):
    """logits = h Wᵀ (+ b), where W is the target embedding when tied (paper, section 3.4)."""

    def __init__(self, head: config.LMHead, embedding: Embedding, path: str = "head") -> None:
        super().__init__()
        self.path = path
        vocab, dim = embedding.weight.shape
        self.table = embedding if head.tied else Embedding(vocab, dim)
        self.bias = nn.Parameter(torch.zeros(vocab)) if head.bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """… dim → … vocab"""
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return F.linear(hidden, self.table.weight.to(hidden.dtype), bias)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Summed loss and NLL of packed `hidden` N dim against `targets` N; see `core.loss`."""
        return linear_cross_entropy(hidden, self.table.weight, self.bias, targets, smoothing)
