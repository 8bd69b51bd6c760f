"""A rectangle of each image is lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.core.fused.random import numbers
from allformer.images.augment.boxes import Boxes, draw_boxes
from allformer.images.augment.chain import (
    Augmentation,
    Drawn,
    Size,
    check_range,
    check_share,
    there,
    uniform,
)


@dataclass(frozen=True)
class RandomErasing(Augmentation):
    """With this probability a box of each image becomes uniform noise, or `value` (Zhong et al.,
    2017): `RandomErasing()(images, generator)`."""

    probability: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 1 / 0.3)
    value: float | None = None  # None: noise from 0 to 1

    def __post_init__(self) -> None:
        check_share("RandomErasing.probability", self.probability)
        check_range("RandomErasing.area", self.area, 1.0)
        check_range("RandomErasing.ratio", self.ratio)

    def draw(self, count: int, size: Size, generator: Generator) -> Drawn:
        """A box of each, 4 B, of no height where nothing is lost; and the noise's seed."""
        chosen = uniform(count, generator) < self.probability
        boxes = draw_boxes(count, size, self.area, self.ratio, generator)
        boxes = boxes._replace(height=torch.where(chosen, boxes.height, 0))
        return torch.stack(boxes), torch.randint(2**62, (), generator=generator)

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        boxes, seed = (there(x, images) for x in drawn)
        lost = Boxes(*boxes).inside(images.shape[2], images.shape[3])
        if self.value is not None:
            return images.masked_fill(lost, self.value)
        # By place alone: so much chance from the host would take longer than all the rest.
        return torch.where(lost, numbers(seed, 0, tuple(images.shape)).to(images.dtype), images)
