"""Segmenter's mask transformer: labels and patches look at each other, then are compared.

Legend: B images, L labels, H and W rows and columns of patches, dim model width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.heads.head import Hidden
from allformer.core.heads.layers import Layers
from allformer.core.heads.per_pixel import PerPixel
from allformer.core.linear import Linear
from allformer.core.norm import make_norm
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.taps import tap


@implements(config.ClassMasks)
class ClassMasks(PerPixel):
    """B F+H·W dim → B L H W: cosines of patches and labels, normalised over the labels."""

    def __init__(
        self, head: config.ClassMasks, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        dim, many = stack.states, len(head.labels)
        self.into = Linear(dim, dim)
        self.classes = nn.Parameter(torch.empty(many, dim))
        self.layers = Layers(head.blocks, dim, path)
        self.norm = make_norm(head.norm, dim)
        self.patch = Linear(dim, dim, bias=False)
        self.label = Linear(dim, dim, bias=False)
        self.over = make_norm(head.norm, many)

    def reset_parameters(self) -> None:
        """Small random labels, as Segmenter starts them."""
        nn.init.trunc_normal_(self.classes, std=0.02)

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        x = self.into(self.patches(hidden))
        own = self.classes.to(x.dtype).expand(len(x), -1, -1)
        x = torch.cat([x, own], 1)  # B H·W+L dim
        for i in range(len(self.config.blocks)):
            x = self.layers(i, x)
        x = tap(self, "normed", self.norm(x))
        many = len(self.config.labels)
        # The length is taken in fp32: squares of half precision overflow.
        patches = F.normalize(widen(self.patch(x[:, :-many])), dim=-1)
        labels = F.normalize(widen(self.label(x[:, -many:])), dim=-1)
        cosines = tap(self, "cosines", patches @ labels.transpose(1, 2))  # B H·W L
        scores = self.over(cosines).transpose(1, 2).unflatten(2, self.shape(hidden))
        return {"logits": tap(self, "logits", scores)}
