"""Rewards: what an answer is worth, as a function, a model or a command says; one file each.

objective:
  rewards:
    - words.py:used                                      # file.py:function or module:function
    - {kind: model, path: runs/sentiment, label: positive, weight: 0.5}
    - {kind: command, run: python judge.py, timeout: 30}
"""

from __future__ import annotations

from allformer.train.policy.rewards import command, function, model  # noqa: F401  (they register)
from allformer.train.policy.rewards.reward import Answered, Judge, Reward, anchored, read_rewards
from allformer.train.policy.rewards.rewards import Rewards

__all__ = ["Answered", "Judge", "Reward", "Rewards", "anchored", "read_rewards"]
