"""Left becomes right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.images.augment.chain import check_images, check_share, uniform


@dataclass(frozen=True)
class RandomFlip:
    """Each image mirrored with this probability: `RandomFlip()(images, generator)`."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_share("RandomFlip.probability", self.probability)

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        chosen = uniform(len(check_images(images)), generator) < self.probability
        chosen = chosen.to(images.device, non_blocking=True)[:, None, None, None]
        return torch.where(chosen, images.flip(-1), images)
