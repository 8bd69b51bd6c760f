"""What an EnCodec is made of.

tree = Encodec(rate=8000, trunk=Seanet(ratios=(8, 5, 4)), bandwidths=(0.5, 1.0, 4.0))
tree.hop, tree.books                       # 160 samples a frame, 8 codebooks
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.codecs.sound.seanet_config import Seanet
from allformer.config.base import Config, Positive, Probability
from allformer.config.check import Rule, above, refuse
from allformer.config.counting import Part
from allformer.config.sound_codec import SoundCodec

_BINARY = Rule(lambda n: n >= 2 and n & (n - 1) == 0, "must be a power of 2", "try 1024")
_SOME = Rule(bool, "must have at least one, in kbit/s", "EnCodec has (1.5, 3.0, 6.0, 12.0, 24.0)")
Codes = Annotated[Positive, _BINARY]
MOST_BOOKS = 4096
MOST_KBIT = 1_000_000


@dataclass(frozen=True)
class Chunks(Config):
    """Sound is encoded in pieces of so many `seconds`, of which each overlaps the next by a share;
    where they do, the decoded ones are faded into each other."""

    seconds: Annotated[float, above(0, "EnCodec has 1.0")] = 1.0
    overlap: Probability = 0.01

    def length(self, rate: int) -> int:
        """Samples of a piece."""
        return int(self.seconds * rate)

    def stride(self, rate: int) -> int:
        """Samples from one piece's first to the next one's."""
        return max(1, int((1.0 - self.overlap) * self.length(rate)))


@dataclass(frozen=True)
class Encodec(SoundCodec):
    """EnCodec (Défossez et al., 2022): convolutions, an LSTM, residual vector quantisation.

    `dim` numbers a frame, quantised by one codebook of `codes` vectors after the other; how many of
    them is said by the bandwidth, one of `bandwidths` in kbit/s, of which the last one names all.
    `loudness`: each piece is encoded at a root mean square of 1, and its own is kept beside the
    codes. The sizes are those that Meta published for 24 kHz.
    """

    rate: Positive = 24_000
    trunk: Seanet = Seanet()
    dim: Positive = 128
    codes: Codes = 1024
    bandwidths: Annotated[tuple[float, ...], _SOME] = (1.5, 3.0, 6.0, 12.0, 24.0)
    loudness: bool = False
    chunks: Chunks | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 0 < each <= MOST_KBIT for each in self.bandwidths):
            must = f"must be positive and at most {MOST_KBIT:,}, in kbit/s"
            refuse(self, "bandwidths", must, "try 1.5 and more")
        if not self.books:
            must = f"leave no codebook: one takes {self.each:g} kbit/s"
            refuse(self, "bandwidths", must, f"end with {self.each:g} or more, or give fewer codes")
        if self.books > MOST_BOOKS:
            must = f"ask for {self.books:,} codebooks, at {self.each:g} kbit/s each"
            refuse(self, "bandwidths", must, f"end with at most {self.each * MOST_BOOKS:g}")
        if self.chunks is not None and self.chunks.length(self.rate) < 1:
            refuse(self, "chunks", f"are shorter than a sample at {self.rate} Hz", "try 1.0 second")

    @property
    def channels(self) -> int:
        return self.trunk.channels

    @property
    def hop(self) -> int:
        return self.trunk.hop

    @property
    def frame_rate(self) -> int:
        """Frames a second."""
        return math.ceil(self.rate / self.hop)

    @property
    def each(self) -> float:
        """What one codebook takes, in kbit/s."""
        return self.frame_rate * math.log2(self.codes) / 1000

    @property
    def books(self) -> int:
        return int(1000 * self.bandwidths[-1] // (self.frame_rate * round(math.log2(self.codes))))

    def books_of(self, bandwidth: float) -> int:
        """How many codebooks a bandwidth affords; at least one, as in the reference."""
        each = math.log2(self.codes) * self.frame_rate  # whole bits: 2.4 kbit/s are 3 times 0.8
        return min(self.books, max(1, math.floor(bandwidth * 1000 / each)))

    def lines(self) -> Iterator[Part]:
        pace = self.pace
        trunk, dim, codes = self.trunk, self.dim, self.codes
        yield trunk.line("encoder", list(trunk.encoder(dim)), self.rate)
        text = f"{self.books} × (V·d = {codes}·{dim}, their sums, V counts, begun)"
        held = self.books * (2 * codes * dim + codes + 1)
        yield Part("codebooks", text, held, round(self.books * 2 * codes * dim * pace))
        yield trunk.line("decoder", list(trunk.decoder(dim)), pace)
