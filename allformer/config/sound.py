"""Sound as a sequence: log-mel frames through two convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.base import Config, Natural, Positive, Probability
from allformer.config.counting import Part, Widths
from allformer.config.source import Source

KERNEL = 3  # frames that a convolution looks at
STRIDE = 2  # of the second one


@dataclass(frozen=True)
class Spans(Config):
    """Spans of `length` neighbours, hidden in training (SpecAugment; Park et al., 2019).

    As many as `share` of all would be, if none overlapped, but at least `least`; what is left of a
    span when that is divided is hidden as often as it is large.
    """

    share: Probability = 0.05
    length: Positive = 10
    least: Natural = 0


@dataclass(frozen=True)
class Sound(Source):
    """Frames of `mels` numbers each, through two convolutions with GELU behind each; the second
    takes every other step, so that two frames become one vector (Whisper).

    Padding is silence, which is heard like any other sound: a mask of frames says only where
    nothing is to be hidden. In training `hide_frames` and `hide_mels` put zeros into spans of
    frames and of mel bins.
    """

    mels: Positive = 80
    hide_frames: Spans | None = None
    hide_mels: Spans | None = None

    def steps(self, frames: int) -> int:
        """How many vectors so many frames become: `Sound().steps(3000)` is 1500."""
        return -(-frames // STRIDE)

    def parameters(self, stack: Widths) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        """Work is told for each vector, to which the first convolution gives two."""
        width = stack.width
        for number, (inputs, steps) in enumerate(((self.mels, STRIDE), (width, 1)), start=1):
            kernel = KERNEL * inputs * width
            text = f"{KERNEL}·{inputs if number == 1 else 'd'}·d + d"
            yield Part(f"{name} convolution {number}", text, kernel + width, 2 * steps * kernel)
