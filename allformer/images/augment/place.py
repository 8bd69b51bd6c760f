"""Images and their maps moved alike: mirrored, and seen from nearer or farther.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment.chain import (
    Drawn,
    check_images,
    check_range,
    check_share,
    there,
    uniform,
)


@dataclass(frozen=True)
class RandomPlace:
    """`RandomPlace(0.5, (0.5, 2.0))(images, maps, generator)`: both of the old size.

    `flip` is the probability that left becomes right. `scale` is how large an image becomes, at a
    random place: of a larger one a part is seen, around a smaller one there is black, in its map
    −1. Images are in between by straight lines, maps by the nearest. A share of `still` keeps its
    size and is as sharp as it was.
    """

    flip: float = 0.5
    scale: tuple[float, float] = (1.0, 1.0)
    still: float = 0.0

    def __post_init__(self) -> None:
        check_share("RandomPlace.flip", self.flip)
        check_share("RandomPlace.still", self.still)
        check_range("RandomPlace.scale", self.scale)

    def __call__(self, images: Tensor, maps: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """B C H W from 0 to 1, and B H W whole numbers of at least −1."""
        count, _, height, width = check_images(images).shape
        if maps.shape != (count, height, width):
            raise ConfigError(
                f"maps={tuple(maps.shape)} must be of the images' size, {(count, height, width)}"
            )
        return self.apply(images, maps, self.draw(count, generator))

    def draw(self, count: int, generator: Generator) -> Drawn:
        """Who is mirrored, B; how large each becomes and where, 3 B, on the host."""
        mirrored = uniform(count, generator) < self.flip
        drawn = uniform(3 * count, generator).view(3, count)
        if self.scale == (1.0, 1.0):
            return (mirrored,)
        low, high = self.scale
        drawn[0] = low * (high / low) ** drawn[0]  # as often half as double
        if self.still:
            drawn[0, uniform(count, generator) < self.still] = 1.0
        return mirrored, drawn

    def apply(self, images: Tensor, maps: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """What was drawn, done."""
        height, width = images.shape[2:]
        chosen, *places = drawn
        chosen = there(chosen, images)
        images = torch.where(chosen[:, None, None, None], images.flip(-1), images)
        maps = torch.where(chosen[:, None, None], maps.flip(-1), maps)
        if not places:
            return images, maps
        grid = self._grid(there(places[0], images, images.dtype), height, width)
        images = F.grid_sample(images, grid, mode="bilinear", align_corners=False)
        above = (maps[:, None] + 1).to(images.dtype)  # outside is 0, and so becomes −1
        seen = F.grid_sample(above, grid, mode="nearest", align_corners=False)[:, 0] - 1
        return images, seen.round().to(maps.dtype)

    def _grid(self, drawn: Tensor, height: int, width: int) -> Tensor:
        """Where each pixel is taken from, B H W 2: from −1 to 1 in the old image. Drawn are how
        large it becomes and where, 3 B."""
        inner = 1 / drawn[0]  # half the part that is seen
        reach = (1 - inner).abs()[:, None]
        centre = (2 * drawn[1:].T - 1) * reach  # B 2
        x, y = (
            (2 * torch.arange(side, device=drawn.device, dtype=drawn.dtype) + 1) / side - 1
            for side in (width, height)  # middles of pixels
        )
        plane = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # H W 2
        return centre[:, None, None] + plane * inner[:, None, None, None]
