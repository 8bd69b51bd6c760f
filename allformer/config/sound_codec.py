"""The slot of a sound codec: a model that turns a waveform into frames of codes, and these into
one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

from allformer.config.base import Config
from allformer.config.counting import Part


class SoundCodec(Config, slot=True):
    """Sound as a few codes a frame, one out of each of several codebooks, and back. It has no head:
    what it is made of stands in `allformer.codecs.sound`. It is built, saved and loaded like any
    model."""

    head: ClassVar[None] = None
    rate: int  # samples a second
    codes: int  # in each codebook

    @property
    def stacks(self) -> dict[str, Any]:
        """None that text or images go through."""
        return {}

    @property
    def channels(self) -> int:
        """1 for mono, 2 for stereo."""
        raise NotImplementedError

    @property
    def hop(self) -> int:
        """Samples that a frame stands for."""
        raise NotImplementedError

    @property
    def books(self) -> int:
        """Codebooks: the most codes that a frame may have."""
        raise NotImplementedError

    @property
    def pace(self) -> float:
        """Frames a second."""
        return self.rate / self.hop

    @property
    def bits(self) -> float:
        """Bits a second, where all codebooks are used."""
        return self.pace * self.books * math.log2(self.codes)

    def lines(self) -> Iterator[Part]:
        """Its lines in the count; operations are those of a second of sound."""
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        """What `build` holds: weights, and the vectors of codebooks that follow a mean."""
        return sum(part.parameters for part in self.lines())
