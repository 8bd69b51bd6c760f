"""Is a table of positions the sinusoidal one? Frequencies are read off the table itself.

For a pure wave s(t+1) + s(t−1) = 2 cos ω · s(t): a column's ω needs no formula to be found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BASE, CLOSE = 10_000, 1.05  # what is within this factor of it is rounding


def waves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each column (T, D): ω, its power, and how far it is from a wave."""
    middle, sum_ = x[1:-1], x[2:] + x[:-2]
    power = (middle * middle).sum(0)
    cosine = (middle * sum_).sum(0) / (2 * power.clamp(min=1e-300))
    return cosine.clamp(-1, 1).acos(), power, (sum_ - 2 * cosine * middle).abs().amax(0)


def frequencies(table: Tensor) -> Tensor | None:
    """ω of each column of a table (T, D), or None if its columns are no waves."""
    x = table.double()
    most = float(x.abs().max())
    if x.shape[0] < 5 or not bool(torch.isfinite(x).all()) or not 0 < most <= 1.5:
        return None
    omega, _, off = waves(x)
    return omega if float(off.max()) <= 1e-4 else None


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a sinusoidal table, or what is worth saying of it; "" for nothing."""

    wrong: str = ""
    note: str = ""


def judge(table: Tensor, length: int = 0, any_base: bool = False) -> Verdict | None:
    """A sinusoidal table (T, D) against the formula; None if it is no such table.

    Its base is 10,000. A larger one is a choice, and noted; a smaller one is a choice only where
    `any_base` says so. `length` is how many positions there are, if more than the table shows.
    """
    wrong, base = _judge(table)
    if wrong is None or wrong:
        return None if wrong is None else Verdict(wrong)
    if base is None or BASE / CLOSE < base < BASE * CLOSE:
        return Verdict()
    width, length = table.shape[-1], max(length, table.shape[0])
    said = (
        f"the frequencies are {round(base, -2 if base > 200 else 0):,.0f}^(−2i/d), not "
        f"10,000^(−2i/d): the slowest of {width // 2} waves repeats after "
        f"{2 * math.pi * base ** (1 - 2 / width):,.0f} positions, of {length:,} positions"
    )
    return Verdict(note=said) if any_base or base > BASE else Verdict(said)


def _judge(table: Tensor) -> tuple[str | None, float | None]:
    """What is wrong with its waves ("" if nothing, None if there are none), and their base."""
    width = table.shape[-1]
    if width < 4:
        return None, None
    table = _of_size_1(table)
    omega = frequencies(table)
    if omega is None:
        return _rising(table), None
    if float((omega > 1e-9).double().mean()) < 0.5:
        return None, None
    gram = table.double() @ table.double().T
    diagonal = (gram[1:, 1:] - gram[:-1, :-1]).abs().max() / gram.abs().max()
    pairs = _pairs(table, omega)
    if pairs is None:
        return (
            f"sine and cosine of a pair have different frequencies: columns 0 … 3 turn by "
            f"{', '.join(f'{float(w):.4g}' for w in omega[:4])} a position (PE·PEᵀ varies by "
            f"{float(diagonal):.2g} along its diagonals)"
        ), None
    return _geometric(pairs, width)


def _of_size_1(table: Tensor) -> Tensor:
    """The table without the number that it may be multiplied by as a whole (0.02, √d).

    Each pair (r·sin, r·cos) has the length r: all rows of d/2 pairs have the length r·√(d/2).
    """
    x = table.double()
    lengths = x.norm(dim=-1)
    longest = float(lengths.max())
    if not 0 < longest < float("inf") or float(lengths.max() - lengths.min()) > 1e-3 * longest:
        return x
    return x / (longest / math.sqrt(x.shape[-1] // 2))


def _rising(table: Tensor) -> str | None:
    """Sines and cosines so fast that rounding damages them: 10000^(+2i/d)."""
    x = table.double()
    half = x.shape[-1] // 2
    layouts = (x[:, 0 : 2 * half : 2], x[:, 1 : 2 * half : 2]), (x[:, :half], x[:, half : 2 * half])
    for sine, cosine in layouts:
        # every pair lies on the circle, and begins at (0, 1) or at one same place
        if x.shape[0] < 5 or float((sine**2 + cosine**2 - 1).abs().max()) > 1e-3:
            continue
        turn = torch.complex(cosine, sine)
        step = (turn[1:] * turn[:-1].conj()).mean(0).angle()  # a position, modulo 2π
        first, second = float(step[0]), float(step[1])
        if abs(first - 1) < 1e-3 and second > first:
            return (
                f"the frequencies rise: the first pair turns by {first:.4g} a position, the second "
                f"by {second:.4g}; 10000^(+2i/d) instead of 10000^(−2i/d)"
            )
    return None


def equal_or_rising(turned: Tensor) -> str:
    """What is wrong with the frequencies of a rotation; `turned` is one vector at T positions.

    Each column of a vector that is turned in pairs is a wave. Slow waves cannot be told from what
    is not turned (partial rotary); any base, and any published way to stretch it, has waves of
    different speed, none of them faster than 1 a position.
    """
    x = turned.double()
    omega, power, off = waves(x)
    fast = omega[(omega > 0.01) & (power > 1e-12 * power.max())]
    if bool((off > 1e-4 * x.abs().max().clamp(min=1e-300)).any()) or fast.numel() < 4:
        return ""  # no waves (xPos grows), or too few to compare
    low, high = float(fast.min()), float(fast.max())
    if high - low < 1e-3 * high:
        return (
            f"all {fast.numel()} numbers that turn do so by {high:.4g} a position: the frequencies "
            f"are one and the same, base^(−2i/d) with 2i/d rounded to 0"
        )
    if any(_folded(omega, base) for base in (BASE, 500_000)):
        return (
            f"frequencies reach {high:.4g} a position, modulo 2π: they rise, as base^(+2i/d) does "
            f"instead of base^(−2i/d)"
        )
    if int((fast > 1.01).sum()) >= 4:
        return (
            f"frequencies reach {high:.4g} a position, modulo 2π; none is above 1 in base^(−2i/d)"
        )
    return ""


def _folded(omega: Tensor, base: float) -> bool:
    """Whether these are base^(+2i/d), as far as they can be told from one position to the next."""
    pairs = omega.numel() // 2
    if pairs < 3 or omega.numel() % 2:
        return False
    rising = base ** (torch.arange(pairs, dtype=torch.float64) / pairs)
    shown = torch.complex(rising.cos(), rising.sin()).angle().abs()
    wanted = shown.repeat(2).sort().values
    return float((omega.sort().values - wanted).abs().max()) < 5e-3


def _pairs(table: Tensor, omega: Tensor) -> Tensor | None:
    """The frequencies of the pairs, in neighbours or in halves."""
    half = omega.shape[0] // 2
    even = omega[: 2 * half]
    for a, b, sa, sb in (
        (even[0::2], even[1::2], table[:, 0 : 2 * half : 2], table[:, 1 : 2 * half : 2]),
        (even[:half], even[half:], table[:, :half], table[:, half : 2 * half]),
    ):
        close = (a - b).abs() < 1e-3 * (a + b) + 2e-4
        circle = (sa.double() ** 2 + sb.double() ** 2 - 1).abs().amax()
        if bool(close.all()) and float(circle) < 1e-3:
            return a
    return None


def _geometric(omega: Tensor, width: int) -> tuple[str, float | None]:
    first = float(omega[0])
    if abs(first - 1) > 1e-3:
        return f"the first pair turns by {first:.4g} a position; 1 is right", None
    sure = omega > 2e-3  # slower waves cannot be measured on a short table
    n = int(sure.sum())
    if n < 2:
        return "" if width <= 4 else _too_fast(omega, width), None
    steps = omega[1:n].log() - omega[: n - 1].log()
    if n > 2 and float((steps - steps.mean()).abs().max()) > 0.03 * abs(float(steps.mean())) + 1e-3:
        return (
            f"the frequencies are not geometric: ratios of neighbours run from "
            f"{float(steps.exp().min()):.3g} to {float(steps.exp().max()):.3g}"
        ), None
    step = float(steps.mean())
    pairs = omega.shape[0]
    bases = [math.exp(-step * pairs), math.exp(-step * max(1, pairs - 1))]
    if step >= 0:
        return f"the frequencies do not fall (ratio {math.exp(step):.3g})", None
    if any(300 < base < 2e6 for base in bases):
        return "", _base(omega)
    return (
        f"neighbouring frequencies have the ratio {math.exp(step):.4g}, as if 10000 were "
        f"{bases[0]:.3g}; with 2i/d it is {10000 ** (-1 / pairs):.4g} (the exponent is "
        f"{math.log(bases[0]) / math.log(10000):.2g} times too large)"
    ), None


def _base(omega: Tensor) -> float:
    """The base of falling frequencies; tensor2tensor divides by d/2 − 1 instead of d/2."""
    fast = omega[omega > 0.02].log()  # slower ones are not measured well enough on a short table
    step = float((fast[0] - fast[-1]) / max(1, fast.numel() - 1))
    bases = [math.exp(step * n) for n in (omega.shape[0], omega.shape[0] - 1)]
    return next((base for base in bases if BASE / CLOSE < base < BASE * CLOSE), bases[0])


def _too_fast(omega: Tensor, width: int) -> str:
    return (
        f"only the first of {omega.shape[0]} pairs turns measurably: the frequencies fall much "
        f"faster than 10000^(−2i/{width})"
    )
