"""Fresh weights."""

from __future__ import annotations

import torch
from torch import nn

from allformer.core.bucket import BucketTable
from allformer.core.linear import Fused
from allformer.core.position import LearnedPosition
from allformer.core.stack import Embedding


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Matrices Glorot-uniform, biases zero, embeddings N(0, 1/dim), norms 1 and 0.

    With the embedding scaled by √dim this makes each embedded feature of variance 1, and tied
    logits of a normalised state too: the first loss is near ln V. A fused matrix is drawn part by
    part: its bound must come from one projection's size, not from the three together.
    """
    for module in model.modules():
        if isinstance(module, Fused):
            for name in module.parts:
                nn.init.xavier_uniform_(module.part(name)[0])
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, Embedding | LearnedPosition | BucketTable):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
