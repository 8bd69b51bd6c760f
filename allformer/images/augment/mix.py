"""Two images in one, and their labels in the same measure: mixup and CutMix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment.boxes import Boxes
from allformer.images.augment.chain import Size, check_images, there, uniform


class Mixing(NamedTuple):
    """How the images of a batch are mixed, on the host: `mixed(images, targets, mixing)`."""

    partner: Tensor  # B: whom each is mixed with
    box: Tensor  # 4: what comes from the other whole: top, left, height, width
    shares: Tensor  # 4: of both pixels outside the box, and of both labels


def unmixed(count: int) -> Mixing:
    """Each image stays alone."""
    shares = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    return Mixing(torch.arange(count), torch.zeros(4, dtype=torch.int64), shares)


def mixed(images: Tensor, targets: Tensor, mixing: Mixing) -> tuple[Tensor, Tensor]:
    """Images B C H W and their labels' shares B L, as it was drawn: the same work for all ways."""
    partner, box = there(mixing.partner, images), there(mixing.box, images)
    own, other, label, second = there(mixing.shares, images, images.dtype)
    second_images = images[partner]
    inside = Boxes(*box[:, None]).inside(images.shape[2], images.shape[3])  # 1 1 H W
    out = torch.where(inside, second_images, own * images + other * second_images)
    return out, label * targets + second * targets[partner]


@dataclass(frozen=True)
class _Mix:
    """λ of an image and 1 - λ of another of its batch, λ ~ Beta(α, α), one for the batch."""

    alpha: float
    classes: int

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not self.alpha > 0:
            raise ConfigError(f"{name}.alpha={self.alpha} must be greater than 0; try 0.8")
        if self.classes < 2:
            raise ConfigError(f"{name}.classes={self.classes} must be at least 2")

    def __call__(
        self, images: Tensor, labels: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Mixed images and targets, B classes, whose rows sum to 1; labels are ids or such rows."""
        targets = labels if labels.ndim == 2 else F.one_hot(labels, self.classes).to(images.dtype)
        count, _, height, width = check_images(images).shape
        return mixed(images, targets, self.draw(count, (height, width), generator))

    def draw(self, count: int, size: Size, generator: Generator) -> Mixing:
        """With whom, and how much."""
        partner = torch.randperm(count, generator=generator)
        box, pixels, share = self.parts(self.share(generator), size, generator)
        shares = torch.tensor([pixels, 1 - pixels, share, 1 - share], dtype=torch.float64)
        return Mixing(partner, torch.tensor(box), shares)

    def share(self, generator: Generator) -> float:
        """λ. (torch draws a Beta from its global state alone.)"""
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        return float(np.random.default_rng(seed).beta(self.alpha, self.alpha))

    def parts(
        self, share: float, size: Size, generator: Generator
    ) -> tuple[tuple[int, int, int, int], float, float]:
        """Of `share` a: the box of b, a's share of the pixels outside it, and of the label."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mixup(_Mix):
    """λ a + (1 - λ) b (Zhang et al., 2017).

    >>> images, targets = Mixup(0.8, classes=10)(images, labels, generator)
    """

    def parts(
        self, share: float, size: Size, generator: Generator
    ) -> tuple[tuple[int, int, int, int], float, float]:
        return (0, 0, 0, 0), share, share


@dataclass(frozen=True)
class CutMix(_Mix):
    """A box of 1 - λ of the area comes from b (Yun et al., 2019); what of it lies outside the image
    is not cut, and λ is what is left of a.

    >>> images, targets = CutMix(1.0, classes=10)(images, labels, generator)
    """

    def parts(
        self, share: float, size: Size, generator: Generator
    ) -> tuple[tuple[int, int, int, int], float, float]:
        edge = math.sqrt(1 - share) / 2
        middle = uniform(2, generator).tolist()
        (top, bottom), (left, right) = (
            (max(0, round((at - edge) * side)), min(side, round((at + edge) * side)))
            for at, side in zip(middle, size, strict=True)
        )
        high, wide = bottom - top, right - left
        return (top, left, high, wide), 1.0, 1 - high * wide / math.prod(size)
