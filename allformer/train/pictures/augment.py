"""What is done to training pictures by chance: `data: {augment: {crop: 4, flip: 0.5, …}}`.

Legend: B images, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

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
from allformer.images.augment.chain import Drawn, Size
from allformer.images.augment.mix import Mixing, mixed, unmixed
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


class Chance(NamedTuple):
    """What is drawn for a batch, on the host."""

    each: tuple[Drawn, ...]  # of each step of the chain
    mixing: Mixing


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

    def draw(self, count: int, size: Size, labels: int, generator: Generator) -> Chance:
        """All that is left to chance for so many images of a size and their labels."""
        chain = self.chain(size)
        drawn, size = chain.draw(count, size, generator), chain.after(size)
        ways = [way for way, alpha in ((Mixup, self.mixup), (CutMix, self.cutmix)) if alpha]
        often, which = torch.rand(2, generator=generator).tolist()
        if not ways or often >= self.mix or count < 2:
            return Chance(drawn, unmixed(count))
        way = ways[int(which * len(ways))]
        alpha = self.mixup if way is Mixup else self.cutmix
        return Chance(drawn, way(alpha, labels).draw(count, size, generator))

    def apply(self, images: Tensor, shares: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        """Images B C H W from 0 to 1, and of two in one their labels' shares, B L, likewise."""
        images = self.chain((images.shape[2], images.shape[3])).apply(images, chance.each)
        if not (self.mixup or self.cutmix):
            return images, shares
        return mixed(images, shares, chance.mixing)

    def fixed(self, size: Size) -> bool:
        """Whether it is the same work whatever is drawn."""
        return self.chain(size).fixed(size)


@dataclass(frozen=True)
class AugmentedPictures(PictureData):
    """Pictures that are changed by chance each time they are trained on."""

    augment: Augment = field(default_factory=Augment)
