"""Rewards without a value model: of several answers to a prompt, those above their mean become
likelier (GRPO).

    objective:
      is: grpo
      rewards: [words.py:used, {kind: model, path: runs/sentiment, label: positive}]
      group: 8
      loss: {kind: dapo, beta: 0.04}
    data: {path: prompts.jsonl, max_length: 128}

The losses are in `policy.grpo`, rewards in `policy.rewards`; what a record may look like in
`data.prompts`.

Legend: R answers, W most tokens of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from allformer.train.objectives.objective import register
from allformer.train.policy.advantages import BATCH, GROUP, NONE, group_advantages
from allformer.train.policy.grpo import Dapo, GrpoLoss, GrpoTokens
from allformer.train.policy.logps import answer_logps, grid_mask
from allformer.train.policy.on_policy import OnPolicy, PolicyBatch
from allformer.train.policy.options import PolicyOptions
from allformer.train.policy.ratio import token_mean
from allformer.train.policy.rollout import Rollout
from allformer.train.preferences.said import without_dropout
from allformer.train.sections.section import at_least, one_of


@dataclass(frozen=True)
class GrpoOptions(PolicyOptions, section="objective"):
    """`group`: answers to each prompt. `scale`: what their advantages are divided by, the spread of
    the group's rewards, of the batch's, or nothing."""

    group: Annotated[int, at_least(2)] = 8
    scale: Annotated[str, one_of(GROUP, BATCH, NONE)] = GROUP
    loss: GrpoLoss = field(default_factory=Dapo)


@register("grpo")
class Grpo(OnPolicy):
    """`Grpo(make_recipe({"objective": {"is": "grpo", "rewards": ["words.py:used"]}, …}))`."""

    Options = GrpoOptions

    @property
    def copies(self) -> int:
        """The group."""
        found: int = self.options.group
        return found

    @property
    def beta(self) -> float:
        """As the loss has it."""
        found: float = self.options.loss.beta
        return found

    def counted(self, answers: int, tokens: int) -> int:
        """As the loss says."""
        found: int = self.options.loss.count(answers, tokens)
        return found

    def work_out(self, rollout: Rollout) -> Rollout:
        """Advantages in the group; what the reference says where that costs something; and what the
        model said, if it will have learnt meanwhile."""
        options = self.options
        more = {"advantages": group_advantages(rollout.score, options.group, options.scale)}
        if self.uses > 1:
            rollout = replace(rollout, logps=self.say(rollout, self.policy).logps)
        if self.beta:
            with self.reference() as model:
                rollout = replace(rollout, reference=self.say(rollout, model).logps)
        return replace(rollout, more=more)

    def loss(
        self,
        model: Any,
        batch: Any,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """As `objective.loss` says; to report, β kl − reward."""
        loss, said = self.options.loss, batch.said
        assert isinstance(batch, PolicyBatch)
        rollout, mask = batch.rollout, grid_mask(said)
        with without_dropout(model):
            logps, entropy = answer_logps(model, said, self.options.sampling.temperature, dtype)
        old = logps.detach() if rollout.logps is None else rollout.logps.to(logps)
        reference = None if rollout.reference is None else rollout.reference.to(logps)
        tokens = GrpoTokens(logps, old, reference, rollout.more["advantages"], mask)
        each, found = loss.each(tokens)
        self.running.add(entropy=token_mean(entropy.detach(), mask), **found)
        sought = loss.beta * found["kl"] if "kl" in found else 0.0
        count = self.counted(len(rollout.rows), len(said.labels))
        plain = (sought - rollout.score.mean()) * count
        return loss.summed(each, mask, self.options.sampling.length), plain.detach()
