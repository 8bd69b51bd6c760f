"""The base of a rotation, read off one vector at all positions.

Exponents −i/d where −2i/d are meant give the square root of the base: 100 where 10,000 is meant.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from allformer.auditor.evidence.sinusoid import waves

CUSTOMARY = (10_000, 500_000)  # RoFormer's; LLaMA 3's. √1,000,000 is a number that one may choose
CLOSE = 0.01


def base_of(turned: Tensor) -> float | None:
    """The base, if every column of (T, D) turns, in pairs, with the frequencies base^(−2i/D)."""
    x = turned.double()
    if x.shape[0] < 5 or x.shape[1] < 6 or x.shape[1] % 2:
        return None
    omega, power, off = waves(x)
    if bool((power < 1e-12 * power.max()).any()) or float(off.max()) > 1e-4 * float(x.abs().max()):
        return None
    found = omega.sort(descending=True).values
    one, two = found[0::2], found[1::2]
    if float((one - two).abs().max()) > 1e-3 * float(one[-1]) or abs(float(one[0]) - 1) > 1e-3:
        return None
    if float(one[-1]) < 1e-4:
        return None  # what hardly turns cannot be told from what does not
    log = one.log()
    pairs = log.numel()
    line = log[-1] * torch.arange(pairs, dtype=log.dtype) / (pairs - 1)
    if float((log - line).abs().max()) > 1e-3 * -float(log[-1]):
        return None  # stretched for longer texts
    return math.exp(-float(log[-1]) * pairs / (pairs - 1))


def halved_exponents(turned: Tensor) -> str:
    """What is wrong, if the base is the square root of one that is in use."""
    base = base_of(turned)
    meant = next((b for b in CUSTOMARY if base and abs(base / math.sqrt(b) - 1) < CLOSE), None)
    if base is None or meant is None:
        return ""
    pairs = turned.shape[1] // 2
    slowest = 2 * math.pi * base ** (1 - 1 / pairs)
    return (
        f"all {2 * pairs} numbers turn, by {base:,.4g}^(−2i/d) a position, which is "
        f"{meant:,}^(−i/d): the exponent is half of 2i/d, and the slowest of {pairs} waves repeats "
        f"after {slowest:,.0f} positions (profile='other-base' if that base is meant)"
    )
