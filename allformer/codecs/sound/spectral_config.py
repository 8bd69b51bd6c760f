"""What a spectral codec is made of; it learns nothing but its codebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.codecs.sound.config import Codes
from allformer.config.base import Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Part
from allformer.config.sound_codec import SoundCodec

_FEW = Rule(lambda n: 1 <= n <= 64, "must be from 1 to 64", "try 3")


@dataclass(frozen=True)
class Spectral(SoundCodec):
    """A frame every `step` samples is the logarithm of how loud `bands` bands are in a `window`
    around it, quantised by one of `levels` codebooks of `codes` vectors after the other. The sound
    of a frame is found again without phases, in so many `rounds` (Griffin and Lim, 1984).

    No convolution is trained: the codebooks are fitted to sound in seconds, which is what it is
    for. `Spectral(rate=8000, codes=256, levels=3)` takes 1.2 kbit/s.
    """

    rate: Positive = 8000
    step: Positive = 160
    window: Positive = 400
    bands: Positive = 80
    codes: Codes = 256
    levels: Annotated[Positive, _FEW] = 3
    rounds: Positive = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 2 * self.step:
            must = f"must be at least two steps of {self.step} samples"
            refuse(self, "window", must, f"try {5 * self.step // 2}")
        if self.bands > self.bins:
            refuse(self, "bands", f"must be at most {self.bins}: a window has no more", "try fewer")

    @property
    def channels(self) -> int:
        return 1

    @property
    def hop(self) -> int:
        return self.step

    @property
    def books(self) -> int:
        return self.levels

    @property
    def bins(self) -> int:
        """Numbers of a window's spectrum, its length being a power of 2."""
        return (1 << math.ceil(math.log2(self.window))) // 2 + 1

    @property
    def bandwidth(self) -> float:
        """What it takes, in kbit/s."""
        return self.levels * math.log2(self.codes) * self.rate / self.step / 1000

    def lines(self) -> Iterator[Part]:
        pace, bands, codes = self.rate / self.step, self.bands, self.codes
        yield Part("mean", f"bands = {bands}", bands, 0)
        text = f"{self.levels} × (V·d = {codes}·{bands}, their sums, V counts, begun)"
        held = self.levels * (2 * codes * bands + codes + 1)
        yield Part("codebooks", text, held, round(self.levels * 2 * codes * bands * pace))
