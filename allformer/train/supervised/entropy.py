"""Cross-entropy of labels, summed: of classes and of tags."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from allformer.core.loss import IGNORE


def entropy_of(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """`entropy_of(logits, labels, 0.1)`: N L and N → one number; −100 counts nothing."""
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
    )
