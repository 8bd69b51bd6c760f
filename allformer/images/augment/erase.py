"""A rectangle of each image is lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.core.fused.random import numbers
from allformer.images.augment.boxes import draw_boxes
from allformer.images.augment.chain import check_images, check_range, check_share, uniform


@dataclass(frozen=True)
class RandomErasing:
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

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, _, height, width = check_images(images).shape
        chosen = uniform(count, generator) < self.probability
        boxes = draw_boxes(count, (height, width), self.area, self.ratio, generator)
        boxes = boxes._replace(height=torch.where(chosen, boxes.height, 0))
        seed = int(torch.randint(2**62, (), generator=generator))
        lost = boxes.to(images.device).inside(height, width)
        if self.value is not None:
            return images.masked_fill(lost, self.value)
        # By place alone: so much chance from the host would take longer than all the rest.
        key = torch.full((), seed, dtype=torch.int64, device=images.device)
        return torch.where(lost, numbers(key, 0, tuple(images.shape)).to(images.dtype), images)
