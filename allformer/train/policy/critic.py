"""The value while it learns beside the policy, with an optimiser of its own.

    critic = Critic(OnBody().make(policy, recipe.model, say), OnBody(), recipe.optim)
    before = critic.values(states, said)                      # when the answers are drawn
    loss = policy_loss + critic.learn(states, said, before, returns)
    critic.step(rate)

Legend: M tokens that are said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.train.opponent import Opponent
from allformer.train.optim import Optim
from allformer.train.policy.ppo import value_losses
from allformer.train.policy.value_head import Value
from allformer.train.preferences.said import Said


class Critic:
    """`module` says what a text is worth (`value_head`); `asked` how it learns."""

    def __init__(self, module: Any, asked: Value, optim: Optim, captures: bool = False) -> None:
        self.module, self.asked = module, asked
        self.faster = asked.rate / optim.rate  # than the policy
        self.opponent = Opponent(module, replace(optim, weight_decay=0.0), captures)

    @torch.no_grad()
    def values(self, states: Tensor, said: Said, dtype: torch.dtype | None = None) -> Tensor:
        """What it says now, M."""
        found: Tensor = self.module(states, said, dtype)
        return found

    def learn(
        self,
        states: Tensor,
        said: Said,
        before: Tensor,
        returns: Tensor,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gather what it will learn; of each token what the policy's body loses by it, and what the
        value itself does, M."""
        own = self.opponent(states.detach(), said, dtype)
        each = value_losses(own, before, returns, self.asked.clip)
        self.opponent.learn(each.sum(), len(each))
        if not self.asked.teaches:
            return torch.zeros_like(each), each.detach()
        shared = self.opponent.frozen(states, said, dtype)
        body = value_losses(shared, before, returns, self.asked.clip)
        return self.asked.teaches * body, each.detach()

    def step(self, rate: Tensor | float) -> None:
        """Follow what was gathered; `rate` is the policy's."""
        self.opponent.step(rate * self.faster)

    def state(self) -> dict[str, Any]:
        """For `restore` after a resume."""
        return self.opponent.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.opponent.restore(state)
