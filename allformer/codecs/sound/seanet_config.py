"""The convolutions that sound codecs are made of (SEANet; Tagliasacchi et al., 2020), as data.

    trunk = Seanet(ratios=(8, 5, 4, 2))
    trunk.hop                                  # 320 samples a frame
    list(trunk.encoder(dim=128))               # layers in their order: Conv, Residual, Bend, …

The module is made of the same list as the count, so neither can have a layer that the other lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from allformer.config.base import Config, Natural, Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Part

_SHARE = Rule(lambda x: 0 <= x <= 1, "must lie in 0 … 1", "1.0 trims at the right alone")
_SOME = Rule(bool, "must have a number for each halving of time", "EnCodec has (8, 5, 4, 2)")
_FEW = Rule(lambda n: n <= 64, "must be at most 64", "EnCodec and Mimi have 1")
MOST_RATIOS = 12


class Conv(NamedTuple):
    """A convolution over time; `up`: a transposed one."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    up: bool = False


class Residual(NamedTuple):
    """x + two convolutions of it, the first one dilated."""

    width: int
    dilation: int


class Recurrent(NamedTuple):
    """x + an LSTM over time."""

    width: int


class Bend(NamedTuple):
    """The activation between them, ELU."""


Layer = Conv | Residual | Recurrent | Bend


@dataclass(frozen=True)
class Seanet(Config):
    """Encoder and decoder of EnCodec (Défossez et al., 2022, section 3.1) and Mimi.

    `hidden` channels to begin with, twice as many after each of the `ratios`, by which time is
    shortened (they stand in the decoder's order, the encoder takes them from the last);
    `residuals` blocks before each, `narrow` times narrower within, the dilation of the j-th
    `growth`^j. `causal`: nothing looks ahead, so all padding stands before; of a transposed
    convolution's surplus the share `trim` is cut off behind. `norm` is that of each convolution:
    of its weights, of its output over all of time (which looks ahead), or none. `lstm` layers
    follow the last ratio.
    """

    channels: Annotated[Positive, Rule(lambda n: n <= 2, "must be 1 or 2", "mono or stereo")] = 1
    hidden: Positive = 32
    ratios: Annotated[tuple[Positive, ...], _SOME] = (8, 5, 4, 2)
    residuals: Annotated[Natural, _FEW] = 1
    kernel: Positive = 7
    last_kernel: Positive = 7
    inner_kernel: Positive = 3
    growth: Positive = 2
    narrow: Positive = 2
    causal: bool = True
    trim: Annotated[float, _SHARE] = 1.0
    padding: Literal["reflect", "constant", "replicate"] = "reflect"
    norm: Literal["weights", "time"] | None = "weights"
    lstm: Natural = 2
    shortcut: bool = True  # a convolution beside each block's; else x itself

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.ratios) > MOST_RATIOS:
            refuse(self, "ratios", f"must be at most {MOST_RATIOS}", "try 4 of them")
        if self.narrow > self.hidden:
            refuse(self, "narrow", f"must be at most hidden={self.hidden}", "try 2")
        if not self.causal and self.trim != 1.0:
            refuse(self, "trim", "is for causal convolutions", "leave it at 1.0")

    @property
    def hop(self) -> int:
        return math.prod(self.ratios)

    @property
    def widest(self) -> int:
        return self.hidden << len(self.ratios)

    def encoder(self, dim: int) -> Iterator[Layer]:
        """Layers from samples to `dim` numbers a frame."""
        yield Conv(self.channels, self.hidden, self.kernel)
        width = self.hidden
        for ratio in reversed(self.ratios):
            for j in range(self.residuals):
                yield Residual(width, self.growth**j)
            yield Bend()
            yield Conv(width, 2 * width, 2 * ratio, ratio)
            width *= 2
        if self.lstm:
            yield Recurrent(width)
        yield Bend()
        yield Conv(width, dim, self.last_kernel)

    def decoder(self, dim: int) -> Iterator[Layer]:
        """And back."""
        width = self.widest
        yield Conv(dim, width, self.kernel)
        if self.lstm:
            yield Recurrent(width)
        for ratio in self.ratios:
            yield Bend()
            yield Conv(width, width // 2, 2 * ratio, ratio, up=True)
            width //= 2
            for j in range(self.residuals):
                yield Residual(width, self.growth**j)
        yield Bend()
        yield Conv(width, self.channels, self.last_kernel)

    def within(self, block: Residual) -> tuple[Conv, Conv, Conv | None]:
        """The convolutions of a residual block: two in a row, and the one beside them."""
        width, inner = block.width, block.width // self.narrow
        first = Conv(width, inner, self.inner_kernel, dilation=block.dilation)
        return first, Conv(inner, width, 1), Conv(width, width, 1) if self.shortcut else None

    # --- counting ---------------------------------------------------------------------------------

    def line(self, name: str, layers: Sequence[Layer], pace: float) -> Part:
        """A half's line in the count, at `pace` steps a second where it begins."""
        convolutions, parameters, flops = 0, 0, 0.0
        for layer in layers:
            if isinstance(layer, Recurrent):
                size = self.lstm * 8 * layer.width**2
                parameters += size + self.lstm * 8 * layer.width
                flops += 2 * size * pace
                continue
            for conv in self._convolutions(layer):
                convolutions += 1
                weights = conv.inputs * conv.outputs * conv.kernel
                parameters += weights + conv.outputs + self._norm(conv)
                pace = pace if conv.up else pace / conv.stride
                flops += 2 * weights * pace
                pace = pace * conv.stride if conv.up else pace
        lstm = f", LSTM of {self.lstm} × 8·(w² + w)" if self.lstm else ""
        text = f"{convolutions} convolutions, k·w·w′ + w′{lstm}"
        return Part(name, text, parameters, round(flops))

    def _convolutions(self, layer: Layer) -> list[Conv]:
        if isinstance(layer, Residual):
            return [conv for conv in self.within(layer) if conv is not None]
        return [layer] if isinstance(layer, Conv) else []

    def _norm(self, conv: Conv) -> int:
        if self.norm == "weights":  # one length for each row of weights as they lie
            return conv.inputs if conv.up else conv.outputs
        return 2 * conv.outputs if self.norm == "time" else 0
