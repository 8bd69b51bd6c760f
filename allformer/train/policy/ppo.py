"""The parts of PPO that are its own: what tokens earn, how good they were, what a value loses. The
clipped loss of the policy is in `ratio`.

Legend: R answers, W most tokens of one, M tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.train.policy.gae import advantages, whiten


class Experience(NamedTuple):
    """Answers that were drawn, before anything is learnt of them."""

    kl: Tensor  # R W: from the reference
    values: Tensor  # R W: what was expected
    scores: Tensor  # R
    ended: Tensor  # R: whether they came to an end
    counts: Tensor  # R: tokens


class Appraised(NamedTuple):
    """By how much each token was better than expected, what its value shall be, R W; and what each
    answer earned, R: its score less what its divergence costs."""

    advantages: Tensor
    returns: Tensor
    earned: Tensor


def appraised(
    drawn: Experience,
    *,
    coef: float,
    gamma: float = 1.0,
    lam: float = 0.95,
    no_end: float = 0.0,
    whiten_rewards: bool = False,
) -> Appraised:
    """`appraised(drawn, coef=0.05)`: rewards of tokens, their advantages (of mean 0 and variance 1
    over the rollout), and returns."""
    width = drawn.kl.shape[1]
    keep = torch.arange(width, device=drawn.kl.device) < drawn.counts[:, None]
    scores = ended_scores(drawn.scores, drawn.ended, no_end)
    rewards = token_rewards(drawn.kl, scores, drawn.counts, coef)
    earned = rewards.sum(1)
    if whiten_rewards:
        rewards = whiten(rewards, keep, shift=False)
    gains = advantages(rewards, drawn.values, keep, gamma, lam)
    return Appraised(whiten(gains, keep), gains + drawn.values, earned)


def token_rewards(kl: Tensor, scores: Tensor, counts: Tensor, coef: float) -> Tensor:
    """Each token of an answer costs its divergence from the reference, and its last one earns the
    answer's score: kl R W, scores R, counts R (tokens of each) → R W.

    (TRL puts the score one token behind the last, where there is room; no value is expected there.)
    """
    width = kl.shape[1]
    keep = torch.arange(width, device=kl.device) < counts[:, None]
    last = F.one_hot(counts - 1, width).to(kl.dtype)
    return torch.where(keep, -coef * kl, 0.0) + last * scores[:, None].to(kl.dtype)


def ended_scores(scores: Tensor, ended: Tensor, no_end: float) -> Tensor:
    """Of answers that came to no end, `no_end` less."""
    return scores - no_end * (~ended).to(scores.dtype)


def value_losses(values: Tensor, before: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """½ (V − return)² of each token, or where that is more, the same of a V that has gone no
    further than `clip` from what it was `before` (Engstrom et al., 2020, section 3)."""
    plain = (values - returns).square()
    if clip is not None:
        near = before + (values - before).clamp(-clip, clip)
        plain = torch.maximum(plain, (near - returns).square())
    return plain / 2


def explained(values: Tensor, returns: Tensor, keep: Tensor) -> Tensor:
    """How much of what came the values had foreseen: 1 − Var(return − V) / Var(return) over all
    tokens that there are; 1: all, 0: nothing, below: they mislead."""
    missed, came = (x[keep].var(correction=0) for x in (returns - values, returns))
    return 1 - missed / came.clamp_min(torch.finfo(came.dtype).tiny)
