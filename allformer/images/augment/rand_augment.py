"""RandAugment (Cubuk et al., 2019): a few operations for each image, all of one strength."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment import operations as does
from allformer.images.augment.chain import Augmentation, Drawn, Size, there

STRONGEST = 30
_MOVES, _BLENDS = "all moves", "all blends"
Amount = Callable[[Tensor], Tensor]

# Name → its amount at a strength from -1 to 1 (those that have no direction take the size alone):
# the paper's ranges.
OPERATIONS: dict[str, Amount] = {
    "identity": lambda s: s,
    "shear_x": lambda s: 0.3 * s,
    "shear_y": lambda s: 0.3 * s,
    "translate_x": lambda s: 150 / 331 * s,
    "translate_y": lambda s: 150 / 331 * s,
    "rotate": lambda s: 30 * s,
    "brightness": lambda s: 1 + 0.9 * s,
    "colour": lambda s: 1 + 0.9 * s,
    "contrast": lambda s: 1 + 0.9 * s,
    "sharpness": lambda s: 1 + 0.9 * s,
    "posterise": lambda s: 8 - (4 * s.abs()).round(),
    "solarise": lambda s: 1 - s.abs(),
    "autocontrast": lambda s: s,
    "equalise": lambda s: s,
}


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """`count` operations one after another, drawn anew for each image, of `strength` 0 to 30 in
    either direction: `RandAugment(2, 9)(images, generator)`."""

    count: int = 2
    strength: float = 9
    operations: tuple[str, ...] = tuple(OPERATIONS)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"RandAugment.count={self.count} must be at least 1; try 2")
        if not 0 <= self.strength <= STRONGEST:
            raise ConfigError(
                f"RandAugment.strength={self.strength} must be from 0 to {STRONGEST}; try 9"
            )
        unknown = [name for name in self.operations if name not in OPERATIONS]
        if unknown or not self.operations:
            raise ConfigError(
                f"RandAugment.operations={self.operations} must be some of {', '.join(OPERATIONS)}"
            )

    def draw(self, count: int, size: Size, generator: Generator) -> Drawn:
        """Of each image, time by time, the row of `_table` that is chosen."""
        table, rows = _table(self.operations, self.strength / STRONGEST, *size), []
        for _ in range(self.count):
            chosen = torch.randint(len(self.operations), (count,), generator=generator)
            signs = torch.randint(2, (count,), generator=generator)
            rows.append(table[2 * chosen + signs])
        return tuple(rows)

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        for rows in drawn:
            images = self._one_each(images, there(rows, images))
        return images

    def _one_each(self, images: Tensor, packed: Tensor) -> Tensor:
        """Of each image the operation whose row of `_table` it has.

        Each operation is computed for all images and taken where it is the chosen one: to gather
        the images of one operation, the host would have to wait for the device. All moves are one
        sampling by a matrix an image, all blends one.
        """
        amount, matrix = packed[:, 0], packed[:, 1:7].view(-1, 2, 3)
        flags = (packed[:, 7:] > 0)[:, :, None, None, None].unbind(1)
        taken = dict(zip((_MOVES, _BLENDS, *self.operations), flags, strict=True))

        blends, others = (
            [name for name in self.operations if name in kinds]
            for kinds in (does.BASES, does.OTHERS)
        )
        out = images
        if any(name in does.MATRICES for name in self.operations):
            out = torch.where(taken[_MOVES], does.warp(images, matrix), out)
        if blends:
            base = images
            for name in blends:
                base = torch.where(taken[name], does.BASES[name](images), base)
            out = torch.where(taken[_BLENDS], does.blend(base, images, amount), out)
        for name in others:
            out = torch.where(taken[name], does.OTHERS[name](images, amount), out)
        return out


@cache
def _table(operations: tuple[str, ...], strength: float, height: int, width: int) -> Tensor:
    """All that may be done to images of this size, 2 · operations × 9 + operations, on the host: of
    each operation its amount in either direction, by which matrix the image is moved, whether it is
    a move, whether it is a blend, and which it is.

    Made once: a batch would spend longer on these few numbers than on its images.
    """
    rows, which = [], torch.eye(len(operations))
    for number, name in enumerate(operations):
        amount = OPERATIONS[name](torch.tensor([-strength, strength]))
        matrix = torch.eye(2, 3).expand(2, 2, 3)
        if name in does.MATRICES:
            matrix = does.MATRICES[name](amount, height, width)
        kinds = torch.tensor([float(name in kinds) for kinds in (does.MATRICES, does.BASES)])
        flags = torch.cat([kinds, which[number]]).expand(2, -1)
        rows.append(torch.cat([amount[:, None], matrix.flatten(1), flags], 1))
    return torch.cat(rows)
