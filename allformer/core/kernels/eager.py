"""The formula as it stands: fits everywhere, holds all the weights in memory."""

from __future__ import annotations

from torch import Tensor

from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.dropout import drop
from allformer.core.kernels.kernel import Case, Plan


class Eager:
    """softmax(Q Kᵀ · scale + mask) V."""

    ragged = False
    whole = False

    def fits(self, case: Case) -> bool:
        return True

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        assert plan.look is not None
        scores = attention_scores(q, k, scale=scale, bias=plan.look.bias)
        return mix(drop(attention_weights(scores, plan.look), dropout), v)
