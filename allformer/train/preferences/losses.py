"""The losses over pairs: `objective: {is: dpo, loss: {kind: ipo, beta: 0.1}}`.

With log-ratios r = log π(y|x) − log π_ref(y|x), of the chosen answer w and the rejected one l, and
n tokens of an answer (the names are TRL's, and so are the numbers):

    sigmoid       −log σ(β (r_w − r_l))                                  DPO; Rafailov et al., 2023
    sigmoid_norm  −log σ(β (r_w / n_w − r_l / n_l))                      by length, as Tülu 3 has it
    ipo           (r_w / n_w − r_l / n_l − 1 / 2β)²                      Azar et al., 2023, eq. 17
    hinge         max(0, 1 − β (r_w − r_l))                              SLiC; Zhao et al., 2023
    robust        what sigmoid would be without a share ε of wrong labels   Chowdhury et al., 2024
    simpo         −log σ(β log π(y_w)/n_w − β log π(y_l)/n_l − γ)        Meng et al., 2024

SimPO is the one without a reference. Where a share ε of the labels may be wrong (`train.smoothing`)
the sigmoids lose (1−ε)·loss(w, l) + ε·loss(l, w) (conservative DPO; Mitchell, 2023).

Legend: P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from allformer.errors import ConfigError
from allformer.train.sections.section import NotNegative, Section, positive


class Scores(NamedTuple):
    """Of pairs, P 2: the chosen answer's, then the rejected one's."""

    logps: Tensor
    reference: Tensor | None  # None: nothing is compared with
    counts: Tensor  # tokens

    @property
    def ratios(self) -> Tensor:
        """log π − log π_ref, P 2."""
        return self.logps if self.reference is None else self.logps - self.reference

    @property
    def mean_ratios(self) -> Tensor:
        """The same for each token."""
        return self.ratios / self.counts


def _gap(sides: Tensor) -> Tensor:
    """By how much the chosen one is above: P 2 → P."""
    return sides[:, 0] - sides[:, 1]


@dataclass(frozen=True)
class PairLoss(Section, section="objective.loss", key="kind", default="sigmoid"):
    """A loss for each pair; β says how far the model may go from its reference: the less, the
    further."""

    refers: ClassVar[bool] = True  # whether it compares with a reference
    smooths: ClassVar[bool] = False  # whether it knows what to do with `train.smoothing`

    beta: Annotated[float, positive("0.1")] = 0.1

    def each(self, scores: Scores, smoothing: float = 0.0) -> Tensor:
        """P."""
        raise NotImplementedError

    def rewards(self, scores: Scores) -> Tensor:
        """What the model makes of each answer, β r: P 2."""
        return self.beta * scores.ratios

    def check(self, smoothing: float) -> None:
        """Refuse a share of wrong labels that would change nothing here."""
        if smoothing and not self.smooths:
            raise ConfigError(
                f"train.smoothing={smoothing}: objective.loss.kind={self.named} does not know it; "
                f"remove it, or choose sigmoid, sigmoid_norm, robust or simpo"
            )


@dataclass(frozen=True)
class Sigmoid(PairLoss, named="sigmoid"):
    """DPO's."""

    smooths: ClassVar[bool] = True

    def gap(self, scores: Scores) -> Tensor:
        """What the sigmoid is of, P."""
        return self.beta * _gap(scores.ratios)

    def each(self, scores: Scores, smoothing: float = 0.0) -> Tensor:
        gap = self.gap(scores)
        right = -F.logsigmoid(gap)
        if not smoothing:
            return right
        return (1 - smoothing) * right - smoothing * F.logsigmoid(-gap)


@dataclass(frozen=True)
class SigmoidNorm(Sigmoid, named="sigmoid_norm"):
    """The same for the mean over an answer's tokens, so that a long one has no more say; the means
    are small, and β is larger."""

    beta: Annotated[float, positive("5.0")] = 5.0  # Tülu 3, section 5

    def gap(self, scores: Scores) -> Tensor:
        return self.beta * _gap(scores.mean_ratios)


@dataclass(frozen=True)
class Robust(Sigmoid, named="robust"):
    """Without bias where `train.smoothing` is the share of wrong labels."""

    def each(self, scores: Scores, smoothing: float = 0.0) -> Tensor:
        gap = self.gap(scores)
        right, wrong = -F.logsigmoid(gap), -F.logsigmoid(-gap)
        return ((1 - smoothing) * right - smoothing * wrong) / (1 - 2 * smoothing)

    def check(self, smoothing: float) -> None:
        if not 0 <= smoothing < 0.5:
            raise ConfigError(
                f"train.smoothing={smoothing} must be below 0.5 for objective.loss.kind=robust: "
                f"with half of the labels wrong there is nothing to learn; try 0.1"
            )


@dataclass(frozen=True)
class Ipo(PairLoss, named="ipo"):
    """A gap of 1/2β for each token, and not more: what is learnt does not run away where all
    labels agree. The authors take means over tokens too, though the paper does not say so."""

    def each(self, scores: Scores, smoothing: float = 0.0) -> Tensor:
        return (_gap(scores.mean_ratios) - 1 / (2 * self.beta)).square()


@dataclass(frozen=True)
class Hinge(PairLoss, named="hinge"):
    """Nothing is learnt of a pair whose gap is 1/β."""

    def each(self, scores: Scores, smoothing: float = 0.0) -> Tensor:
        return (1 - self.beta * _gap(scores.ratios)).relu()


@dataclass(frozen=True)
class SimPo(Sigmoid, named="simpo"):
    """Without a reference: an answer's worth is its likelihood for each token, as it is when the
    model writes; the chosen one shall be `gamma` above."""

    refers: ClassVar[bool] = False

    beta: Annotated[float, positive("2.0")] = 2.0
    gamma: NotNegative = 1.0

    def gap(self, scores: Scores) -> Tensor:
        return self.beta * _gap(scores.logps / scores.counts) - self.gamma

    def rewards(self, scores: Scores) -> Tensor:
        return self.beta * scores.logps / scores.counts
