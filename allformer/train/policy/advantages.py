"""How much better an answer is than the others to the same prompt (GRPO).

Shao et al. (2024), DeepSeekMath, section 4.1.2; Liu et al. (2025), "Understanding R1-Zero-like
training", section 3: to divide by the spread of a group makes easy and hard prompts count for more.

Legend: R answers, those of a prompt beside each other, G of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP, BATCH, NONE = "group", "batch", "none"
_SMALL = 1e-4  # TRL's: a group whose answers are all worth the same teaches nothing


def group_advantages(scores: Tensor, group: int, scale: str = GROUP) -> Tensor:
    """Above the mean of the group, in spreads of it, of the batch, or as it is: R → R.

    >>> group_advantages(torch.tensor([1.0, 3.0]), 2, "none")
    tensor([-1.,  1.])
    """
    each = scores.view(-1, group)
    above = each - each.mean(1, keepdim=True)
    if scale == GROUP:
        above = above / (each.std(1, keepdim=True) + _SMALL)
    elif scale == BATCH:
        above = above / (scores.std() + _SMALL)
    return above.flatten()


def group_spread(scores: Tensor, group: int) -> Tensor:
    """The standard deviation inside a group, the mean over groups."""
    if group < 2:
        return torch.zeros((), dtype=scores.dtype, device=scores.device)
    return scores.view(-1, group).std(1).mean()
