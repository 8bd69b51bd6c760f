"""LayerNorm and RMSNorm: over the features of each token, never over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.precision import cast, widen


class LayerNorm(nn.Module):
    """γ ⊙ (x − μ) / √(σ² + ε) + β, with the biased variance; statistics in at least fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))  # γ
        self.bias = nn.Parameter(torch.zeros(dim))  # β
        self.eps = eps

    def reset_parameters(self) -> None:
        """The plain norm: γ = 1, β = 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        # torch's own kernels sum half precision in fp32, and round once, at the end.
        wide = x if x.dtype == self.weight.dtype else widen(x)
        w, b = cast(self.weight, wide.dtype), cast(self.bias, wide.dtype)
        return cast(F.layer_norm(wide, w.shape, w, b, self.eps), x.dtype)


class RMSNorm(nn.Module):
    """γ ⊙ x / √(mean(x²) + ε); statistics in at least fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))  # γ
        self.eps = eps

    def reset_parameters(self) -> None:
        """The plain norm: γ = 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        w = cast(self.weight, wide.dtype)
        return cast(F.rms_norm(wide, w.shape, w, self.eps), x.dtype)


def make_norm(norm: config.Norm, dim: int) -> LayerNorm | RMSNorm:
    """The module for a `Norm` slot."""
    return LayerNorm(dim, norm.eps) if norm.kind == "layer" else RMSNorm(dim, norm.eps)
