"""A rectangle of each image is lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.images.augment.boxes import draw_box
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
        count, channels, height, width = check_images(images).shape
        out = images.clone()
        chosen = uniform(count, generator) < self.probability
        for i in chosen.nonzero()[:, 0].tolist():
            box = draw_box((height, width), self.area, self.ratio, generator)
            if box is None:
                continue
            place = out[i, :, box.top : box.top + box.height, box.left : box.left + box.width]
            if self.value is not None:
                place.fill_(self.value)
            else:
                place.copy_(torch.rand(channels, box.height, box.width, generator=generator))
        return out
