"""Gumbel softmax (Jang et al., 2016; Maddison et al., 2016): a choice with a gradient.

Legend: B batch, V codes, h w the grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gumbel_noise(like: Tensor) -> Tensor:
    """−log(−log u) for u between 0 and 1: added to logits, the largest is a draw from softmax."""
    return -torch.empty_like(like).exponential_().log()


def relaxed(logits: Tensor, temperature: Tensor | float, noise: Tensor) -> Tensor:
    """softmax((logits + noise) / temperature) over the codes, B V h w.

    Towards temperature 0 one code has all, towards ∞ all have the same.
    """
    return ((logits + noise) / temperature).softmax(1)


def straight_through(soft: Tensor) -> Tensor:
    """One code has all, with the gradient of `soft`."""
    # Not F.one_hot: it looks at its numbers, and waits for the device to do so.
    hard = torch.zeros_like(soft).scatter_(1, soft.argmax(1, keepdim=True), 1.0)
    return hard + soft - soft.detach()


def idleness(use: Tensor, keep: Tensor) -> Tensor:
    """KL(mean q ‖ uniform) of a batch, one number: 0 where all codes are used alike, however sure
    each choice is. `use` is B V, of the images with `keep` 1."""
    share = (use * keep[:, None]).sum(0) / keep.sum()
    sure: Tensor = torch.special.xlogy(share, share).sum()
    return math.log(use.shape[1]) + sure


def divergence(logits: Tensor) -> Tensor:
    """KL(q ‖ uniform) of each place, B h w: log V − the entropy of the codes."""
    log_q = logits.log_softmax(1)
    return math.log(logits.shape[1]) + (log_q.exp() * log_q).sum(1)
