"""A table of vectors: tokens, token types."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """A table of token vectors, shared between encoder, decoder and head by sharing this module."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, dim))

    def reset_parameters(self) -> None:
        """N(0, 1/dim): scaled by √dim each embedded feature has variance 1, and tied logits of a
        normalised state too, so that the first loss is near ln V."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, ids: Tensor, fixed: int | None = None) -> Tensor:
        """ids … → … dim; the row `fixed` gets no gradient."""
        return F.embedding(ids, self.weight, fixed)
