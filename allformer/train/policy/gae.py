"""How much better than expected each token of an answer was (Schulman et al., 2016).

    δ_t = r_t + γ V_{t+1} − V_t                    V = 0 behind the last token
    A_t = δ_t + γλ A_{t+1}                         eq. 16

λ = 0 believes the values, λ = 1 only what came.

Legend: R answers, W most tokens of one; an answer stands at the left of its row.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EPS = 1e-8  # below the variance, as TRL has it


def advantages(
    rewards: Tensor, values: Tensor, keep: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> Tensor:
    """R W of each, `keep` True where there is a token: `advantages(rewards, values, keep)` → R W,
    0 where there is none. What they shall come to (the returns) is this + `values`."""
    rewards, values = (torch.where(keep, x, 0.0) for x in (rewards, values))
    follows = torch.nn.functional.pad(values[:, 1:], (0, 1))  # V_{t+1}
    surprise = rewards + gamma * follows - values
    found = torch.zeros_like(surprise)
    later = surprise.new_zeros(len(surprise))
    for t in range(surprise.shape[1] - 1, -1, -1):
        later = surprise[:, t] + gamma * lam * later
        found[:, t] = later
    return found


def whiten(x: Tensor, keep: Tensor, shift: bool = True) -> Tensor:
    """Of mean 0 and variance 1 over all tokens that there are, R W; without `shift` the mean stays.

    A single token has no variance: it keeps its size.
    """
    x = torch.where(keep, x, 0.0)
    count = keep.sum()
    mean = x.sum() / count
    away = torch.where(keep, x - mean, 0.0)
    variance = torch.where(count > 1, away.square().sum() / (count - 1).clamp_min(1), 1.0)
    found = away * torch.rsqrt(variance + _EPS)
    return found if shift else torch.where(keep, found + mean, 0.0)
