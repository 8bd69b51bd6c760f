"""Norms that are written out in a forward pass: which formula gave the divisor?

With d the divisor, v the variance (or the mean square) and n features, d² − v is the same at every
position for the formula √(v + ε), d − √v for √v + ε, d − v where the root is missing; with
v·n/(n − 1) in place of v where the variance is the unbiased one. What is left is ε.
"""

from __future__ import annotations

from torch import Tensor

from allformer.auditor.report import Finding
from allformer.auditor.watch import Division

SAME = 1e-5  # of the divisor's size; norms compute in fp32
LARGE = 2e-3


def formula(division: Division) -> Finding | bool:
    """A finding; True for a sound norm; False for a division of another kind."""
    by = division.by.double()
    if not bool(by.isfinite().all()) or not bool((by > 0).all()):
        return False
    wrong: Finding | None = None
    for given in division.reduced:
        for v in _moments(given.double()):
            if float(v.std()) < 0.05 * float(v.mean()):
                continue  # the same everywhere: every formula fits
            verdict = _judge(division.where, by, v, given.shape[-1])
            if verdict is True:
                return True
            wrong = wrong or verdict or None
    return wrong or False


def _moments(x: Tensor) -> list[Tensor]:
    """Variance and mean square of x; of squares, their mean."""
    if bool((x >= 0).all()):
        return [x.mean(-1, keepdim=True)]
    return [x.var(-1, correction=0, keepdim=True), x.square().mean(-1, keepdim=True)]


def _judge(where: str, by: Tensor, v: Tensor, n: int) -> Finding | bool | None:
    fair = n / (n - 1)
    epsilon = [
        e for e in (_rest(by.square() - v, by.square()), _rest(by - v.sqrt(), by)) if e is not None
    ]
    if epsilon and epsilon[0] <= max(LARGE, 10 * SAME * float(by.square().max())):
        return True  # small, or not to be told from rounding
    if epsilon:
        at = float(v.mean())
        return Finding(
            "norm.epsilon",
            f"epsilon is {epsilon[0]:.2g}, beside variances of {at:.2g}: at each of "
            f"{by.numel()} positions the divisor fits it",
            where,
        )
    unbiased = [
        e for e in (_rest(by.square() - v * fair, by.square()), _rest(by - (v * fair).sqrt(), by))
        if e is not None
    ]  # fmt: skip
    if unbiased:
        return Finding(
            "norm.variance",
            f"at each of {by.numel()} positions the divisor is the root of n/(n − 1) times the "
            f"variance, n = {n}, and an epsilon of {max(unbiased[0], 0.0):.2g}: the variance is "
            f"the unbiased one",
            where,
        )
    if any(_rest(by - v * factor, by) is not None for factor in (1, fair)):
        return Finding(
            "norm.variance",
            f"at each of {by.numel()} positions the divisor is the variance (mean "
            f"{float(v.mean()):.3g}), not its root",
            where,
        )
    return None


def _rest(rest: Tensor, size: Tensor) -> float | None:
    """What is left, if it is the same everywhere and not below 0."""
    tolerance = SAME * float(size.max())
    same = float(rest.max() - rest.min()) < tolerance and float(rest.min()) > -tolerance
    return float(rest.mean()) if same else None
