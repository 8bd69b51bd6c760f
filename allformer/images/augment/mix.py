"""Two images in one, and their labels in the same measure: mixup and CutMix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment.chain import check_images, uniform


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
        partner = torch.randperm(len(check_images(images)), generator=generator)
        partner = partner.to(images.device, non_blocking=True)
        images, share = self.mix(images, images[partner], self.share(generator), generator)
        return images, share * targets + (1 - share) * targets[partner]

    def share(self, generator: Generator) -> float:
        """λ. (torch draws a Beta from its global state alone.)"""
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        return float(np.random.default_rng(seed).beta(self.alpha, self.alpha))

    def mix(self, a: Tensor, b: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
        """Images of `share` a, and what share it became."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mixup(_Mix):
    """λ a + (1 - λ) b (Zhang et al., 2017).

    >>> images, targets = Mixup(0.8, classes=10)(images, labels, generator)
    """

    def mix(self, a: Tensor, b: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
        return share * a + (1 - share) * b, share


@dataclass(frozen=True)
class CutMix(_Mix):
    """A box of 1 - λ of the area comes from b (Yun et al., 2019); what of it lies outside the image
    is not cut, and λ is what is left of a.

    >>> images, targets = CutMix(1.0, classes=10)(images, labels, generator)
    """

    def mix(self, a: Tensor, b: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
        height, width = a.shape[2:]
        edge = math.sqrt(1 - share) / 2
        middle = uniform(2, generator).tolist()
        (top, bottom), (left, right) = (
            (max(0, round((at - edge) * size)), min(size, round((at + edge) * size)))
            for at, size in zip(middle, (height, width), strict=True)
        )
        out = a.clone()
        out[:, :, top:bottom, left:right] = b[:, :, top:bottom, left:right]
        return out, 1 - (bottom - top) * (right - left) / (height * width)
