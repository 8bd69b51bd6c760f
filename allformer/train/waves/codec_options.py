"""How a sound codec learns: what its losses weigh, how its codebooks follow, who judges it.

objective:
  is: sound-codec
  spectral: 1.0
  wave: 1.0
  books: [1, 2, 3, 6]
  balance: 0.99
  judges: {windows: [512, 256, 128], width: 16, after: 500, every: 2}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from allformer.config.base import Positive
from allformer.config.check import Rule
from allformer.train.sections.section import Count, NotNegative, Section, Whole, positive, share

_SOME = Rule(
    lambda x: len(x) > 0 and all(n >= 16 and n & (n - 1) == 0 for n in x),
    "must be powers of 2, from 16 on",
    "try [1024, 512, 256]",
)
_EACH = Rule(lambda x: len(x) > 0, "must have one at least", "leave it out for any number")


@dataclass(frozen=True)
class Judges(Section, section="objective.judges"):
    """Discriminators of spectra (Défossez et al., 2022), one for each of `windows`, `width`
    channels wide. They sit from step `after` on in each `every`-th step: then they learn, at `rate`
    times the model's rate, and the model learns from them: `fool` weighs the hinge loss, `match`
    the distance of their features. The other steps are without them, and many times shorter."""

    windows: Annotated[tuple[int, ...], _SOME] = (1024, 512, 256)
    width: Count = 32
    rate: Annotated[float, positive("1.0")] = 1.0
    after: Whole = 0
    every: Count = 1
    fool: NotNegative = 0.1
    match: NotNegative = 0.5


@dataclass(frozen=True)
class SoundCodecOptions(Section, section="objective"):
    """`spectral`, `wave` and `commitment` weigh the distance of log-mel spectra, of the waves, and
    of the encoder's frames from their codes. With `balance` the weights of what is heard (these
    two and the judges') are lengths of gradients at the wave, whatever the losses' own scales are;
    it is the decay of the lengths' moving means.

    The codebooks are moving means of `decay`; a code that stands for fewer than `restart` times
    the mean of all begins anew (0: never). Each crop is coded by a number of codebooks drawn from
    `books` (None: 1 … all), so that one codec serves every bit rate; of a share `unquantised` of
    them the decoder reads the frames as they are. Without `judges` nothing is adversarial.
    """

    spectral: NotNegative = 1.0
    wave: NotNegative = 1.0
    commitment: NotNegative = 0.02
    balance: Annotated[float | None, share("0.99")] = None
    decay: Annotated[float, share("0.99")] = 0.99
    restart: Annotated[float, share("0.1")] = 0.1
    books: Annotated[tuple[Positive, ...] | None, _EACH] = None
    unquantised: Annotated[float, share("0.5")] = 0.5
    judges: Judges | None = field(default=None)
