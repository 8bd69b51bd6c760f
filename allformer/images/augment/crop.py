"""A part of each image: of a random size and shape, or moved by a few pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment.boxes import Box, draw_box
from allformer.images.augment.chain import check_images, check_range


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of a share of the area (`scale`) and a shape (`ratio`), resized to `size` (height,
    width), bilinear with antialiasing (Szegedy et al., 2014): the usual crop of ImageNet.

    >>> RandomResizedCrop((224, 224))(images, generator).shape
    torch.Size([8, 3, 224, 224])
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        check_range("RandomResizedCrop.scale", self.scale, 1.0)
        check_range("RandomResizedCrop.ratio", self.ratio)

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        height, width = check_images(images).shape[2:]
        out = [
            F.interpolate(
                image[None, :, box.top : box.top + box.height, box.left : box.left + box.width],
                self.size,
                mode="bilinear",
                antialias=True,
            )
            for image, box in ((each, self.box(height, width, generator)) for each in images)
        ]
        return torch.cat(out) if out else images.new_empty(0, images.shape[1], *self.size)

    def box(self, height: int, width: int, generator: Generator) -> Box:
        """The box of one image; where none fits, the largest of an allowed shape in the middle."""
        found = draw_box((height, width), self.scale, self.ratio, generator)
        if found is not None:
            return found
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        h, w = min(height, round(width / aspect)), min(width, round(height * aspect))
        return Box((height - h) // 2, (width - w) // 2, h, w)


@dataclass(frozen=True)
class RandomCrop:
    """Black put around each image, and a part of the old size cut out of it: the usual crop of
    small images (CIFAR: `RandomCrop(padding=4)`)."""

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 1:
            raise ConfigError(f"RandomCrop.padding={self.padding} must be at least 1; try 4")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, channels, height, width = check_images(images).shape
        moved = torch.randint(2 * self.padding + 1, (2, count, 1), generator=generator)
        rows = (moved[0] + torch.arange(height)).to(images.device)  # B H
        columns = (moved[1] + torch.arange(width)).to(images.device)  # B W
        padded = F.pad(images, (self.padding,) * 4)
        which = torch.arange(count, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[:, None, None]
        return padded[which, channel, rows[:, None, :, None], columns[:, None, None, :]]
