"""Rotary positions, and how their angles are scaled for texts longer than those trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from allformer.config.base import Config, Positive
from allformer.config.check import above, refuse
from allformer.config.relative import Relative


class Scaling(Config, slot=True):
    """Changes how fast pairs of features turn (formulas: `core/relatives/rates.py`)."""

    by_length: ClassVar[bool] = False  # whether the longest text of a call has a say

    def fits(self, size: int) -> None:
        """Refuse heads of a size that it cannot serve."""


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Rotary positions divided by `factor`: a longer text is squeezed into the trained range."""

    factor: Annotated[float, above(0, "try 2.0")]


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """LLaMA 3.1: slow frequencies are divided by `factor`, fast ones kept, a ramp between.

    Fast: more than `high` turns within the `length` of pre-training; slow: fewer than `low`.
    """

    factor: Annotated[float, above(0, "LLaMA 3.1 has 8.0")]
    low: float = 1.0
    high: float = 4.0
    length: Positive = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low < self.high:
            refuse(self, "low", f"must be between 0 and high={self.high}", "LLaMA 3.1 has 1.0")


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN (Peng et al., 2023): as LLaMA 3.1's, with the ramp over the pairs of features rather
    than over their turns, and queries and keys made longer by `gain`.

    The ramp begins at the pair that turns `fast` times within the `length` of pre-training and
    ends at the one that turns `slow` times; `whole`: at whole pairs. `gain=None`: 0.1 ln factor + 1
    (equation 22, on queries and on keys).
    """

    factor: Annotated[float, above(0, "try 4.0")]
    length: Positive
    fast: Annotated[float, above(0, "YaRN has 32.0")] = 32.0
    slow: Annotated[float, above(0, "YaRN has 1.0")] = 1.0
    gain: Annotated[float, above(0, "try 1.0, or None")] | None = None
    whole: bool = True


@dataclass(frozen=True)
class LongScaling(Scaling):
    """LongRoPE (Ding et al., 2024): each pair of features has a divisor of its own, from `short`
    while a text fits into the `length` of pre-training, else from `long`.

    `gain`: what queries and keys are multiplied by; None: √(1 + ln factor / ln length).
    """

    by_length: ClassVar[bool] = True
    factor: Annotated[float, above(0, "longest text / length")]
    length: Annotated[int, above(1, "Phi-3 has 4096")]
    short: tuple[float, ...]
    long: tuple[float, ...]
    gain: Annotated[float, above(0, "try 1.0, or None")] | None = None

    def fits(self, size: int) -> None:
        for name in ("short", "long"):
            divisors = getattr(self, name)
            if len(divisors) != size // 2 or min(divisors) <= 0:
                must = f"must have {size // 2} positive numbers, one for each pair of a head"
                refuse(self, name, must, "correct it")


@dataclass(frozen=True)
class DynamicScaling(Scaling):
    """Dynamic NTK: θ grows with what a text has beyond the `length` of pre-training; up to it
    nothing changes."""

    by_length: ClassVar[bool] = True
    factor: Annotated[float, above(0, "try 2.0")]
    length: Positive

    def fits(self, size: int) -> None:
        if size < 4:
            refuse(self, "factor", f"needs heads of 4 features or more, not {size}", "widen them")


@dataclass(frozen=True)
class ProportionalScaling(Scaling):
    """Only the fastest `share` of the pairs turn, as fast as in a whole head, divided by `factor`;
    the others carry no position."""

    share: Annotated[float, above(0, "try 0.25")]
    factor: Annotated[float, above(0, "try 1.0")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share > 1:
            refuse(self, "share", "must be at most 1", "try 0.25")


AnyScaling = (
    LinearScaling | Llama3Scaling | YarnScaling | LongScaling | DynamicScaling | ProportionalScaling
)


@dataclass(frozen=True)
class Rotary(Relative):
    """Queries and keys turned by an angle that grows with the position (halves of a head paired).

    `length` is what the model was trained for; it is told, not enforced.
    """

    theta: Annotated[float, above(1, "LLaMA has 10000.0")] = 10_000.0
    scaling: AnyScaling | None = None
    length: Positive | None = None

    @property
    def steady(self) -> bool:
        """Whether an angle depends on the place alone, so that it can be kept."""
        return self.scaling is None or not self.scaling.by_length

    def fits(self, stack: Any) -> None:
        if self.scaling is not None:
            self.scaling.fits(stack.blocks[0].attention.size(stack.dim))
