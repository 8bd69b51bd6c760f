"""Segmenter's linear decoder: scores over labels for the places of each patch.

Legend: B images, L labels, H and W rows and columns of patches, C places in a patch's row.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.heads.head import Hidden
from allformer.core.heads.per_pixel import PerPixel
from allformer.core.linear import Linear
from allformer.core.registry import implements
from allformer.core.taps import tap


@implements(config.LinearMasks)
class LinearMasks(PerPixel):
    """B F+H·W dim → B L H·C W·C: each state becomes a square of scores."""

    def __init__(
        self, head: config.LinearMasks, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.out = Linear(stack.states, head.outputs())

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        x = self.out(self.patches(hidden))  # B H·W L·C·C
        x = x.transpose(1, 2).unflatten(2, self.shape(hidden))
        return {"logits": tap(self, "logits", F.pixel_shuffle(x, self.config.cells))}
