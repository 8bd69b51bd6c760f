"""A convolution that keeps the size of the picture, in the dtype of its input.

Legend: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.core.precision import cast


class Convolution(nn.Module):
    """Weights `w` and `b`, as in OpenAI's files; an odd kernel, zeros at the edge."""

    decays = ("w",)

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        self.b = nn.Parameter(torch.empty(outputs))

    def reset_parameters(self) -> None:
        """As OpenAI starts them: a variance of 1 for inputs of 1."""
        nn.init.normal_(self.w, std=1 / math.sqrt(self.w[0].numel()))
        nn.init.zeros_(self.b)

    def forward(self, x: Tensor) -> Tensor:
        w, b = cast(self.w, x.dtype), cast(self.b, x.dtype)
        return F.conv2d(x, w, b, padding=self.w.shape[-1] // 2)
