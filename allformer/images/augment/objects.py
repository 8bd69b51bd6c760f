"""Images moved, enlarged and mirrored, and the boxes on them likewise.

Legend: B images, C channels, M objects of an image at most.
"""

from __future__ import annotations

import math
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

NOBODY = -1


@dataclass(frozen=True)
class MoveObjects:
    """Each image mirrored by chance (`flip`), enlarged by a factor (`zoom`, from … to) and moved by
    a share of its sides at most (`shift`); black comes in from outside.

    An object of which less than `least` stays on the image is no longer one of its objects. A share
    of `still` is neither enlarged nor moved: in between pixels an image is blurred, and those that
    shall be read later are not.
    """

    flip: float = 0.5
    zoom: tuple[float, float] = (1.0, 1.0)
    shift: float = 0.0
    least: float = 0.5
    still: float = 0.0

    def __post_init__(self) -> None:
        check_share("MoveObjects.flip", self.flip)
        check_share("MoveObjects.least", self.least)
        check_share("MoveObjects.still", self.still)
        check_range("MoveObjects.zoom", self.zoom)
        if not 0 <= self.shift < 1:
            raise ConfigError(f"MoveObjects.shift={self.shift} must be from 0 to 1; try 0.1")

    def __call__(
        self, images: Tensor, boxes: Tensor, classes: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Images B C H W from 0 to 1, boxes B M 4 (centre and size, as shares of the image) and
        classes B M (−1: no object) → the same, moved."""
        return self.apply(images, boxes, classes, self.draw(len(check_images(images)), generator))

    def draw(self, count: int, generator: Generator) -> Drawn:
        """Of each the factors and the shifts along x and y, B 2 each, on the host."""
        mirrored = uniform(count, generator) < self.flip
        zoom = uniform(count, generator, *map(math.log, self.zoom)).exp()
        shift = torch.stack([uniform(count, generator, -self.shift, self.shift) for _ in "xy"], 1)
        if self.still:
            stays = uniform(count, generator) < self.still
            zoom, shift = zoom.where(~stays, 1.0), shift.where(~stays[:, None], 0.0)
        sign = torch.where(mirrored, -1.0, 1.0).double()
        # Seen from the middle: out = (in + shift) · zoom, and x mirrored.
        return torch.stack([zoom * sign, zoom], 1), shift

    def apply(
        self, images: Tensor, boxes: Tensor, classes: Tensor, drawn: Drawn
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What was drawn, done."""
        factor, shift = (there(x, images, images.dtype) for x in drawn)
        moved = self._sample(images, factor, shift)
        middle, size = boxes[..., :2], boxes[..., 2:]
        factor, shift = factor[:, None].to(boxes.dtype), shift[:, None].to(boxes.dtype)
        middle = (middle - 0.5 + shift) * factor + 0.5
        size = size * factor.abs()
        return moved, *self._cut(middle, size, classes)

    def _sample(self, images: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
        """Bilinear; torch's coordinates run from −1 to 1, so that shifts count twice there."""
        turn = torch.zeros(len(images), 2, 3, dtype=images.dtype, device=images.device)
        turn[:, 0, 0], turn[:, 1, 1] = 1 / factor[:, 0], 1 / factor[:, 1]
        turn[:, :, 2] = -2 * shift
        grid = F.affine_grid(turn, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)

    def _cut(self, middle: Tensor, size: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes as far as they lie on the image, and who is still there."""
        low, high = ((middle + sign * size / 2).clamp(0, 1) for sign in (-1, 1))
        left = (high - low).prod(-1) / size.prod(-1).clamp_min(1e-12)
        boxes = torch.cat([(low + high) / 2, high - low], -1)
        gone = left < self.least
        return boxes, classes.masked_fill(gone, NOBODY)
