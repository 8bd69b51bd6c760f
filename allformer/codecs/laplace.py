"""The logit-Laplace distribution (Ramesh et al., 2021, appendix A.3): of numbers inside 0 … 1.

    f(x) = 1 / (2 b x (1 − x)) · exp(−|logit x − μ| / b)

Pixels lie in 0 … 1, ends included, where the logit is not finite: they are mapped to ε … 1 − ε.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

EPSILON = 0.1  # the paper's


def map_pixels(x: Tensor) -> Tensor:
    """0 … 1 → ε … 1 − ε."""
    return (1 - 2 * EPSILON) * x + EPSILON


def unmap_pixels(x: Tensor) -> Tensor:
    """ε … 1 − ε → 0 … 1, and what lies outside to its ends."""
    return ((x - EPSILON) / (1 - 2 * EPSILON)).clamp(0, 1)


def logit_laplace_nll(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """−log f(x) of each number: `logit_laplace_nll(map_pixels(pixels), mu, ln_b)`."""
    log_x, log_rest = x.log(), (-x).log1p()
    apart = (log_x - log_rest - mean).abs()
    return log_scale + log_x + log_rest + apart * (-log_scale).exp() + math.log(2)


def at_least(log_scale: Tensor, floor: float) -> Tensor:
    """A scale that stays above e^floor, with a gradient everywhere; far above it, itself.

    Pixels have 256 values: where an image is one grey throughout, the density of a distribution
    that grows ever narrower has no end, and neither has its gradient.
    """
    return floor + F.softplus(log_scale - floor)
