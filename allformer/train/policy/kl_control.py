"""How far a policy may go from its reference: what a nat of divergence costs.

    objective: {is: ppo, kl: {is: fixed, coef: 0.05}}
    objective: {is: ppo, kl: {is: adaptive, coef: 0.2, target: 6, horizon: 10000}}

A token's divergence is estimated from its own likelihoods alone (`ratio`): `k1` is what the price
in Ziegler et al. (2019) is of, `k3` is never negative, and steadier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from allformer.train.policy.ratio import k1, k3
from allformer.train.sections.section import NotNegative, Section, one_of, positive

K1, K3 = "k1", "k3"
_MOST = 0.2  # a single step's error, Ziegler et al. (2019), section 2.2


def estimate(logps: Tensor, reference: Tensor, kind: str = K1) -> Tensor:
    """KL(π ‖ π_ref) by the tokens that were drawn: `estimate(logps, reference, "k3")`."""
    return k1(logps, reference) if kind == K1 else k3(logps, reference)


@dataclass(frozen=True)
class Control(Section, section="objective.kl", key="is", default="fixed"):
    """What a nat costs at first, and how nats are estimated."""

    coef: NotNegative = 0.05
    estimator: Annotated[str, one_of(K1, K3)] = K1

    def next(self, coef: float, kl: float, answers: int) -> float:
        """What a nat costs after a rollout of so many answers, whose KL was in the mean so much."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fixed(Control, named="fixed"):
    """Always the same."""

    def next(self, coef: float, kl: float, answers: int) -> float:
        return coef


@dataclass(frozen=True)
class Adaptive(Control, named="adaptive"):
    """Dearer while answers are further than `target` nats from the reference, cheaper while they
    are nearer: Ziegler et al. (2019), section 2.2. `horizon` answers at an error of 1 would double
    the price; an error counts as 0.2 at most."""

    coef: Annotated[float, positive("0.2")] = 0.2
    target: Annotated[float, positive("6.0")] = 6.0
    horizon: Annotated[int, positive("10000")] = 10_000

    def next(self, coef: float, kl: float, answers: int) -> float:
        error = min(max(kl / self.target - 1, -_MOST), _MOST)
        return coef * (1 + error * answers / self.horizon)
