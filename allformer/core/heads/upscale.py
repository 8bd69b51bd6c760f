"""A plane of features, twice as high and wide each time (EoMT, as ViTDet does it).

Legend: B images, D features, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.core.activation import ACT
from allformer.core.norm import LayerNorm
from allformer.core.precision import cast


class Doubled(nn.Module):
    """B D H W → B D 2H 2W: a transposed convolution, the activation, a convolution of 3 × 3 within
    each feature, and a norm over the features of each place."""

    decays = ("up", "within")

    def __init__(self, dim: int, act: str, eps: float) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(dim, dim, 2, 2))
        self.up_bias = nn.Parameter(torch.empty(dim))
        self.within = nn.Parameter(torch.empty(dim, 1, 3, 3))
        self.act: Callable[[Tensor], Tensor] = ACT[act]
        self.norm = LayerNorm(dim, eps)

    def reset_parameters(self) -> None:
        """As a convolution of torch's starts: within 1/√(inputs of a place)."""
        wide = 1 / sqrt(4 * self.up.shape[0])
        for tensor, bound in ((self.up, wide), (self.up_bias, wide), (self.within, 1 / 3)):
            nn.init.uniform_(tensor, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        up, bias, within = (cast(w, x.dtype) for w in (self.up, self.up_bias, self.within))
        x = self.act(F.conv_transpose2d(x, up, bias, stride=2))
        x = F.conv2d(x, within, padding=1, groups=x.shape[1])
        normed: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return normed.permute(0, 3, 1, 2)
