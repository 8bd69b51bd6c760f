"""A part of each image: of a random size and shape, or moved by a few pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment.boxes import Boxes, draw_boxes
from allformer.images.augment.chain import Augmentation, Drawn, Size, check_range, there


@dataclass(frozen=True)
class RandomResizedCrop(Augmentation):
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

    def draw(self, count: int, size: Size, generator: Generator) -> Drawn:
        """A box of each, 4 B."""
        return (torch.stack(self.boxes(count, *size, generator)),)

    def after(self, size: Size) -> Size:
        return self.size

    def fixed(self, size: Size) -> bool:
        """No box shrinks: there is nothing to average."""
        return self.size[0] >= size[0] and self.size[1] >= size[1]

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        if self.fixed((images.shape[2], images.shape[3])):
            return enlarged(images, Boxes(*there(drawn[0], images)), self.size)
        out = [
            F.interpolate(
                image[None, :, top : top + high, left : left + wide],
                self.size,
                mode="bilinear",
                antialias=True,
            )
            for image, (top, left, high, wide) in zip(images, drawn[0].T.tolist(), strict=True)
        ]
        return torch.cat(out) if out else images.new_empty(0, images.shape[1], *self.size)

    def boxes(self, count: int, height: int, width: int, generator: Generator) -> Boxes:
        """One for each image; where none fits, the largest of an allowed shape in the middle."""
        found = draw_boxes(count, (height, width), self.scale, self.ratio, generator)
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        h, w = min(height, round(width / aspect)), min(width, round(height * aspect))
        middle = ((height - h) // 2, (width - w) // 2, h, w)
        sides = (torch.where(found.found, x, y) for x, y in zip(found, middle, strict=True))
        return Boxes(*sides)


def enlarged(images: Tensor, boxes: Boxes, size: tuple[int, int]) -> Tensor:
    """Boxes on the images' device, resized to a size that none is larger than, bilinear, all at
    once."""

    def places(first: Tensor, length: Tensor, count: int, whole: int) -> Tensor:
        """Where each of `count` pixels comes from, B count, from -1 to 1."""
        steps = torch.arange(count, device=images.device, dtype=images.dtype) + 0.5
        within = steps * (length[:, None] / count) - 0.5
        within = within.clamp_min(0).minimum(length[:, None] - 1)  # nothing from beyond the box
        return (first[:, None] + within + 0.5) * (2 / whole) - 1

    height, width = images.shape[2:]
    y = places(boxes.top, boxes.height, size[0], height)[:, :, None].expand(-1, *size)
    x = places(boxes.left, boxes.width, size[1], width)[:, None].expand(-1, *size)
    return F.grid_sample(images, torch.stack([x, y], -1), align_corners=False)


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Black put around each image, and a part of the old size cut out of it: the usual crop of
    small images (CIFAR: `RandomCrop(padding=4)`)."""

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 1:
            raise ConfigError(f"RandomCrop.padding={self.padding} must be at least 1; try 4")

    def draw(self, count: int, size: Size, generator: Generator) -> Drawn:
        """Where the part begins, 2 B 1."""
        return (torch.randint(2 * self.padding + 1, (2, count, 1), generator=generator),)

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        count, channels, height, width = images.shape
        moved = there(drawn[0], images)
        rows = moved[0] + torch.arange(height, device=images.device)  # B H
        columns = moved[1] + torch.arange(width, device=images.device)  # B W
        padded = F.pad(images, (self.padding,) * 4)
        which = torch.arange(count, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[:, None, None]
        return padded[which, channel, rows[:, None, :, None], columns[:, None, None, :]]
