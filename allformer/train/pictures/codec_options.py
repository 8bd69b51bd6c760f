"""How a codec learns: relaxed codes with a temperature, or nearest ones with a moving codebook.

    objective: {is: image-codec, codes: gumbel, temperature: [1.0, 0.0625], anneal: 4000, kl: 0.4}
    objective: {is: image-codec, codes: nearest, commitment: 0.25, decay: 0.99, restart: 1.0}

Legend: B images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from allformer.codecs import DVAE, VQVAE
from allformer.codecs.gumbel import idleness
from allformer.config import Codec
from allformer.config.check import Rule
from allformer.train.sections.section import NotNegative, Section, Whole, share

_TWO = Rule(
    lambda x: len(x) == 2 and min(x) > 0, "must be two numbers above 0", "try [1.0, 0.0625]"
)
Temperatures = Annotated[tuple[float, ...], _TWO]


class Now(NamedTuple):
    """What a step is told, as numbers, and on the device as tensors of one number."""

    temperature: Any
    weight: Any  # of the second sum


@dataclass(frozen=True)
class CodecOptions(Section, section="objective", key="codes", default="gumbel"):
    """A choice by the codec."""

    tree: ClassVar[type[Codec]]  # that learns so

    @classmethod
    def of(cls, tree: Any) -> str | None:
        """The choice that teaches such a tree: `CodecOptions.of(DVAE())` → "gumbel"."""
        kinds: dict[str, Any] = dict(cls.classes)
        return next((name for name, kind in kinds.items() if isinstance(tree, kind.tree)), None)

    def now(self, step: int) -> Now:
        """What holds in step 1, 2, …"""
        raise NotImplementedError

    def sums(
        self, codec: Any, pixels: Tensor, keep: Tensor, now: Now, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        """Over all images with `keep` 1: the loss to go down, and −log p of the pixels in it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gumbel(CodecOptions, named="gumbel"):
    """Ramesh et al., 2021, appendix A.2: the temperature goes from the first to the last one of
    `temperature` in `anneal` steps, the weight of the KL term from 0 to `kl` in `kl_warmup`, both
    along half a cosine. With `hard` the decoder sees the best code alone (straight-through).

    `spread` is not of the paper: so much, by the pixel, of KL(mean q ‖ uniform) over a batch. The
    KL term keeps codes in use by making each choice unsure; this one leaves the choices alone, and
    few steps suffice.
    """

    tree = DVAE

    temperature: Temperatures = (1.0, 1 / 16)
    anneal: Whole = 150_000
    kl: NotNegative = 6.6
    kl_warmup: Whole = 5_000
    hard: bool = False
    spread: NotNegative = 0.0

    def now(self, step: int) -> Now:
        first, last = self.temperature
        along, risen = cosine(step, self.anneal), cosine(step, self.kl_warmup)
        return Now(last + (first - last) * (1 - along), self.kl * risen)

    def sums(
        self, codec: Any, pixels: Tensor, keep: Tensor, now: Now, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        found = codec.learn(pixels, now.temperature, hard=self.hard, dtype=dtype)
        nll = (found.nll * keep).sum()
        loss = nll + now.weight * (found.kl * keep).sum()
        if self.spread:
            numbers = pixels[0].numel() * keep.sum()
            loss = loss + self.spread * numbers * idleness(found.use, keep)
        return loss, nll.detach()


@dataclass(frozen=True)
class Nearest(CodecOptions, named="nearest"):
    """van den Oord et al., 2017: `commitment` keeps the encoder at its codes; the codebook is a
    moving mean of `decay`. A code that stands for fewer than `restart` vectors a step begins anew
    at one of them (0: never)."""

    tree = VQVAE

    commitment: NotNegative = 0.25
    decay: Annotated[float, share("0.99")] = 0.99
    restart: NotNegative = 1.0

    def now(self, step: int) -> Now:
        return Now(0.0, self.commitment)

    def sums(
        self, codec: Any, pixels: Tensor, keep: Tensor, now: Now, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        error, apart = codec.learn(
            pixels, decay=self.decay, restart=self.restart, keep=keep, dtype=dtype
        )
        error = (error * keep).sum()
        each = pixels[0].numel()  # so that, by the pixel, it is the paper's sum of two means
        return error + now.weight * each * (apart * keep).sum(), error.detach()


def cosine(step: int, steps: int) -> float:
    """0 before the first step, 1 from step `steps` on, half a cosine between."""
    return 1.0 if step >= steps else 0.5 - 0.5 * math.cos(math.pi * step / steps)
