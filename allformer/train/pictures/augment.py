"""What is done to training pictures by chance: `data: {augment: {crop: 4, flip: 0.5, …}}`.

Legend: B images, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Generator, Tensor

from allformer.config.check import Rule
from allformer.images.augment import (
    Augmentation,
    Chain,
    CutMix,
    Mixup,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
)
from allformer.train.pictures.data import PictureData
from allformer.train.sections.section import (
    Fraction,
    NotNegative,
    Section,
    Whole,
    at_least,
    at_most,
)

_RANGE = Rule(
    lambda x: len(x) == 2 and 0 < x[0] <= x[1] <= 1,
    "must be two shares of the area",
    "try [0.3, 1]",
)


@dataclass(frozen=True)
class Augment(Section, section="data.augment"):
    """In the order in which they act; what is 0 does not."""

    crop: Whole = 0  # pixels of black around an image, out of which one of the old size is cut
    scale: Annotated[tuple[float, ...] | None, _RANGE] = None  # a box of such a share, enlarged
    flip: Fraction = 0.0  # how many are mirrored
    randaugment: Whole = 0  # operations for each image
    strength: Annotated[float, at_least(0), at_most(30)] = 9.0  # of those
    erase: Fraction = 0.0  # how many lose a box
    mixup: NotNegative = 0.0  # α of Beta(α, α), the share of one image in two
    cutmix: NotNegative = 0.0  # the same, of the area
    mix: Fraction = 1.0  # how many batches are mixed, half of them by each where there are both

    def chain(self, size: tuple[int, ...]) -> Chain:
        """What is done to each image by itself."""
        steps: list[Augmentation] = []
        if self.crop:
            steps.append(RandomCrop(self.crop))
        if self.scale is not None:
            steps.append(RandomResizedCrop((size[0], size[1]), (self.scale[0], self.scale[1])))
        if self.flip:
            steps.append(RandomFlip(self.flip))
        if self.randaugment:
            steps.append(RandAugment(self.randaugment, self.strength))
        if self.erase:
            steps.append(RandomErasing(self.erase))
        return Chain(tuple(steps))

    def mixed(self, images: Tensor, shares: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Two images in one, B of each, and their labels' shares, B L, likewise."""
        ways = [way for way, alpha in ((Mixup, self.mixup), (CutMix, self.cutmix)) if alpha]
        often, which = torch.rand(2, generator=generator).tolist()
        if not ways or often >= self.mix or len(images) < 2:
            return images, shares
        way = ways[int(which * len(ways))]
        alpha = self.mixup if way is Mixup else self.cutmix
        return way(alpha, shares.shape[1])(images, shares, generator)


@dataclass(frozen=True)
class AugmentedPictures(PictureData):
    """Pictures that are changed by chance each time they are trained on."""

    augment: Augment = field(default_factory=Augment)
