"""GRPO's loss, and its variants: how the losses of tokens become one.

    objective: {is: grpo, loss: {kind: dapo, clip_high: 0.28}}

Shao et al. (2024), DeepSeekMath, equation 3; Liu et al. (2025), Dr. GRPO; Yu et al. (2025), DAPO.

Legend: R answers, W most tokens of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from allformer.train.policy.ratio import (
    SEQUENCE,
    TOKEN,
    clipped,
    clipped_loss,
    k3,
    ratios,
    token_mean,
)
from allformer.train.sections.section import NotNegative, Section, one_of


class GrpoTokens(NamedTuple):
    """What a loss is made of; grids R W, but for the advantages, R."""

    logps: Tensor
    old: Tensor  # of the model that has drawn the answers
    reference: Tensor | None
    advantages: Tensor
    mask: Tensor


@dataclass(frozen=True)
class GrpoLoss(Section, section="objective.loss", key="kind", default="dapo"):
    """`beta`: what divergence from the reference costs, 0: nothing. A ratio counts up to 1 −
    `clip_low` … 1 + `clip_high` (left out: the same), for each token or each answer (`level`).

    The divergence is weighted by the ratio, whose gradient makes that of the estimate the
    divergence's own (DeepSeek-V3.2, section 3.1); `unbiased: false` is DeepSeekMath's.
    """

    beta: NotNegative = 0.04  # DeepSeekMath, section 4.2
    clip_low: NotNegative = 0.2
    clip_high: Annotated[float | None, NotNegative.__metadata__[0]] = None
    level: Annotated[str, one_of(TOKEN, SEQUENCE)] = TOKEN
    unbiased: bool = True

    @property
    def bounds(self) -> tuple[float, float]:
        """How far a ratio may go, down and up."""
        return self.clip_low, self.clip_low if self.clip_high is None else self.clip_high

    def each(self, x: GrpoTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, R W, and figures."""
        ratio = ratios(x.logps, x.old, x.mask, self.level)
        above = x.advantages[:, None].to(ratio)
        loss = clipped_loss(ratio, above, *self.bounds)
        found = {"clipped": token_mean(clipped(ratio, above, *self.bounds).to(loss), x.mask)}
        if x.reference is not None:
            kl = k3(x.logps, x.reference) * (ratio if self.unbiased else 1.0)
            found["kl"] = token_mean(kl, x.mask)
            loss = loss + self.beta * kl
        return loss.expand_as(x.mask) * x.mask, {n: v.detach() for n, v in found.items()}

    def summed(self, tokens: Tensor, mask: Tensor, length: int) -> Tensor:
        """A sum over what `count` counts."""
        raise NotImplementedError

    def count(self, answers: int, tokens: int) -> int:
        """What the loss of a step is a mean over."""
        raise NotImplementedError


@dataclass(frozen=True)
class Grpo(GrpoLoss, named="grpo"):
    """Each answer counts the same: the tokens of a long one for less."""

    def summed(self, tokens: Tensor, mask: Tensor, length: int) -> Tensor:
        return (tokens.sum(1) / mask.sum(1).clamp_min(1)).sum()

    def count(self, answers: int, tokens: int) -> int:
        return answers


@dataclass(frozen=True)
class DrGrpo(GrpoLoss, named="dr_grpo"):
    """Each token counts the same, whatever else was said: divided by the most there could be."""

    def summed(self, tokens: Tensor, mask: Tensor, length: int) -> Tensor:
        return tokens.sum() / length

    def count(self, answers: int, tokens: int) -> int:
        return answers


@dataclass(frozen=True)
class Dapo(GrpoLoss, named="dapo"):
    """The mean over all tokens of a step."""

    def summed(self, tokens: Tensor, mask: Tensor, length: int) -> Tensor:
        return tokens.sum()

    def count(self, answers: int, tokens: int) -> int:
        return tokens


@dataclass(frozen=True)
class Bnpo(GrpoLoss, named="bnpo"):
    """The mean over the tokens of a micro-batch, and then over micro-batches."""

    def summed(self, tokens: Tensor, mask: Tensor, length: int) -> Tensor:
        return tokens.sum() / mask.sum().clamp_min(1)

    def count(self, answers: int, tokens: int) -> int:
        return 1
