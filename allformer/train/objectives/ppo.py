"""Rewards with a value beside the policy: tokens after which an answer came out better than was
expected become likelier (PPO).

    objective:
      is: ppo
      rewards: [words.py:used]
      prompts: 32
      iterations: 4
      kl: {is: adaptive, coef: 0.1, target: 6}
      value: {is: head}
    data: {path: prompts.jsonl, max_length: 128}

Ziegler et al. (2019); Ouyang et al. (2022), section 3.5 and appendix C.4. What a token earns and
what is lost is in `policy.ppo`, advantages in `policy.gae`, the price of divergence in
`policy.kl_control`, the value in `policy.value_head`.

Legend: R answers, W most tokens of one, M tokens of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from allformer.train.objectives.objective import register
from allformer.train.policy.critic import Critic
from allformer.train.policy.kl_control import Control, Fixed, estimate
from allformer.train.policy.logps import grid_mask, off_grid, on_grid, state_logps
from allformer.train.policy.on_policy import OnPolicy
from allformer.train.policy.options import PolicyOptions
from allformer.train.policy.ppo import Experience, appraised, explained
from allformer.train.policy.ratio import clipped, clipped_loss, ratios, token_mean
from allformer.train.policy.rollout import Rollout
from allformer.train.policy.value_head import OnBody, Value
from allformer.train.preferences.said import Said, said_states, without_dropout
from allformer.train.sections.section import Count, Fraction, NotNegative, positive


@dataclass(frozen=True)
class PpoOptions(PolicyOptions, section="objective"):
    """`clip`: how far a token's likelihood may go from that of the draw before it teaches no more.
    `entropy`: what a nat of openness earns. `no_end`: by how much less an answer scores that comes
    to no end. `whiten_rewards`: what tokens earn is brought to one size first."""

    prompts: Count = 32
    iterations: Count = 4
    clip: Annotated[float, positive("0.2")] = 0.2
    gamma: Fraction = 1.0
    lam: Fraction = 0.95
    entropy: NotNegative = 0.0
    no_end: NotNegative = 0.0
    whiten_rewards: bool = False
    kl: Control = field(default_factory=Fixed)
    value: Value = field(default_factory=OnBody)


@register("ppo")
class Ppo(OnPolicy):
    """`Ppo(make_recipe({"objective": {"is": "ppo", "rewards": ["words.py:used"]}, …}))`."""

    Options = PpoOptions

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        kl = getattr(self.recipe.options, "kl", Fixed())
        self.coef: float = kl.coef  # what a nat costs now
        self.critic: Critic | None = None

    @property
    def beta(self) -> float:
        """What a nat costs now."""
        return self.coef

    def counted(self, answers: int, tokens: int) -> int:
        """Each token counts the same."""
        return tokens

    def meet(self, model: Any, captures: bool) -> None:
        """Beside the model that answers, its value."""
        super().meet(model, captures)
        asked: Value = self.options.value
        module = asked.make(model, self.recipe.model, lambda line: None)
        self.critic = Critic(module, asked, self.recipe.optim)

    # --- rollouts -------------------------------------------------------------------------------

    def work_out(self, rollout: Rollout) -> Rollout:
        """What the policy, its reference and its value made of every token before anything was
        learnt of them, and by how much each was better than expected. Then the price follows."""
        assert self.critic is not None
        said = rollout.said()
        states = self._states(self.policy, said, self.dtype)
        logps = self._logps(states, said)
        values = on_grid(said, self.critic.values(states, said, self.dtype))
        reference = None
        if self.beta:
            with self.reference() as model:
                reference = self.say(rollout, model).logps
        options = self.options
        kl = estimate(logps, logps if reference is None else reference, options.kl.estimator)
        found = appraised(
            Experience(kl, values, rollout.score, rollout.ended, said.counts),
            coef=self.coef,
            gamma=options.gamma,
            lam=options.lam,
            no_end=options.no_end,
            whiten_rewards=options.whiten_rewards,
        )
        self.running.add(explained=explained(values, found.returns, grid_mask(said)))
        self._follow(kl, grid_mask(said))
        more = {"values": values, **found._asdict()}
        return replace(rollout, logps=logps, reference=reference, more=more)

    @torch.no_grad()
    def _states(self, model: Any, said: Said, dtype: torch.dtype | None) -> Tensor:
        with without_dropout(model):
            return said_states(model, said, dtype)

    @torch.no_grad()
    def _logps(self, states: Tensor, said: Said) -> Tensor:
        head, temperature = self.policy.vocab_head, self.options.sampling.temperature
        return state_logps(head, states, said, temperature).logps

    def _follow(self, kl: Tensor, mask: Tensor) -> None:
        """A rollout has told how far the policy is: the next one's price."""
        answers = (kl * mask).sum(1).mean()
        self.running.add(
            kl=token_mean(kl, mask), kl_answer=answers, kl_coef=kl.new_tensor(self.coef)
        )
        self.coef = self.options.kl.next(self.coef, float(answers), len(kl))

    # --- losses ---------------------------------------------------------------------------------

    def loss(
        self,
        model: Any,
        batch: Any,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """The clipped loss of each token, less what openness earns, and what the body learns from
        the value; to report, what was earned, the other way round."""
        assert self.critic is not None
        said, rollout, options = batch.said, batch.rollout, self.options
        mask, clip = grid_mask(said), options.clip
        with without_dropout(model):
            states = said_states(model, said, dtype)
            logps, entropy = state_logps(
                model.vocab_head, states, said, options.sampling.temperature
            )
        gains = rollout.more["advantages"].to(logps)
        ratio = ratios(logps, rollout.logps.to(logps), mask)
        each = clipped_loss(ratio, gains, clip, clip) - options.entropy * entropy
        before, returns = (off_grid(said, rollout.more[x]) for x in ("values", "returns"))
        body, lost = self.critic.learn(states, said, before, returns, dtype)
        self.running.add(
            entropy=token_mean(entropy.detach(), mask),
            clipped=token_mean(clipped(ratio, gains, clip, clip).to(logps), mask),
            value_loss=lost.mean(),
        )
        plain = -rollout.more["earned"].mean() * len(said.labels)
        return (each * mask).sum() + body.sum(), plain.detach()

    def stepped(self, rate: Tensor | float) -> None:
        """The value follows what it has gathered."""
        super().stepped(rate)
        assert self.critic is not None
        self.critic.step(rate)

    # --- across a resume, and at the end ----------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """With the value, its optimiser, and the price."""
        critic = None if self.critic is None else self.critic.state()
        return {**super().state(), "critic": critic, "coef": self.coef}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        super().restore(state)
        self.coef = state.get("coef", self.coef)
        if self.critic is not None and state.get("critic") is not None:
            self.critic.restore(state["critic"])

    def finish(self, run: Path) -> None:
        """The value is kept beside the model where that was asked for."""
        super().finish(run)
        if self.critic is not None and self.options.value.keep:
            self.critic.module.keep(run)
