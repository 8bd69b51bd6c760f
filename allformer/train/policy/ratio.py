"""What GRPO and PPO share: how much likelier an answer has become, clipped; and a divergence.

Legend: R answers, W most tokens of one. Grids have 0 behind the end of an answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOKEN, SEQUENCE = "token", "sequence"


def ratios(logps: Tensor, old: Tensor, mask: Tensor, level: str = TOKEN) -> Tensor:
    """π/π_old of each token, R W, or the mean over an answer's tokens, R 1 (Zheng et al., 2025,
    GSPO, equation 7)."""
    apart = logps - old
    if level == SEQUENCE:
        apart = (apart * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)
    return apart.exp()


def clipped_loss(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """−min(r A, clip(r, 1 − low, 1 + high) A) (Schulman et al., 2017, equation 7)."""
    held = ratio.clamp(1 - low, 1 + high)
    return -torch.minimum(ratio * advantages, held * advantages)


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Where the loss has no gradient: the ratio is already as far as it may go."""
    return ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))


def k1(logps: Tensor, reference: Tensor) -> Tensor:
    """log π/π_ref of each token: its mean under π is the divergence, and it may be negative."""
    return logps - reference


def k3(logps: Tensor, reference: Tensor) -> Tensor:
    """π_ref/π − log π_ref/π − 1 of each token: the same mean, never negative, of less variance
    (Schulman, 2020, "Approximating KL divergence")."""
    apart = reference - logps
    return apart.exp() - apart - 1


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Over all tokens that there are; values may be of whole answers, R 1."""
    if values.shape[1] == 1:
        return values.mean()
    return (values * mask).sum() / mask.sum().clamp_min(1)
