"""Left becomes right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.images.augment.chain import Augmentation, Drawn, Size, check_share, there, uniform


@dataclass(frozen=True)
class RandomFlip(Augmentation):
    """Each image mirrored with this probability: `RandomFlip()(images, generator)`."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_share("RandomFlip.probability", self.probability)

    def draw(self, count: int, size: Size, generator: Generator) -> Drawn:
        """Who is mirrored, B."""
        return (uniform(count, generator) < self.probability,)

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        chosen = there(drawn[0], images)[:, None, None, None]
        return torch.where(chosen, images.flip(-1), images)
