"""The parts of PPO (Schulman et al., 2017): what a token earns, and what policy and value lose.

Legend: R answers, W most tokens of one, M tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(kl: Tensor, scores: Tensor, counts: Tensor, coef: float) -> Tensor:
    """Each token of an answer costs its divergence from the reference, and its last one earns the
    answer's score: kl R W, scores R, counts R (tokens of each) → R W."""
    rewards = -coef * kl
    keep = torch.arange(kl.shape[1], device=kl.device) < counts[:, None]
    last = torch.nn.functional.one_hot(counts - 1, kl.shape[1]).to(rewards.dtype)
    return torch.where(keep, rewards, 0.0) + last * scores[:, None].to(rewards)


def ended_scores(scores: Tensor, ended: Tensor, penalty: float | None) -> Tensor:
    """Of answers that came to no end (`ended` False), `penalty` less."""
    return scores if penalty is None else scores - penalty * (~ended).to(scores)


def policy_losses(logps: Tensor, drawn: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """−min(ratio · A, clip(ratio, 1 ± ε) · A) of each token, eq. 7; `drawn` is what log π was when
    the answers were drawn."""
    ratio = (logps - drawn).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped(logps: Tensor, drawn: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Of which tokens nothing more is learnt, as the policy has gone far enough already."""
    ratio = (logps - drawn).exp()
    above, below = (ratio > 1 + clip) & (advantages > 0), (ratio < 1 - clip) & (advantages < 0)
    return above | below


def value_losses(values: Tensor, before: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """½ (V − return)² of each token, or where that is more, the same of a V that has gone no
    further than `clip` from what it was `before` (Engstrom et al., 2020, section 3)."""
    plain = (values - returns).square()
    if clip is not None:
        near = before + (values - before).clamp(-clip, clip)
        plain = torch.maximum(plain, (near - returns).square())
    return plain / 2
