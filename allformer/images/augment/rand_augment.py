"""RandAugment (Cubuk et al., 2019): a few operations for each image, all of one strength."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.errors import ConfigError
from allformer.images.augment import operations as does
from allformer.images.augment.chain import check_images

STRONGEST = 30
Operation = Callable[[Tensor, Tensor], Tensor]


def _same(images: Tensor, amount: Tensor) -> Tensor:
    return images


# Name → operation, and its amount at a strength from -1 to 1 (those that have no direction take the
# size alone): the paper's ranges.
OPERATIONS: dict[str, tuple[Operation, Callable[[Tensor], Tensor]]] = {
    "identity": (_same, lambda s: s),
    "shear_x": (does.shear_x, lambda s: 0.3 * s),
    "shear_y": (does.shear_y, lambda s: 0.3 * s),
    "translate_x": (does.translate_x, lambda s: 150 / 331 * s),
    "translate_y": (does.translate_y, lambda s: 150 / 331 * s),
    "rotate": (does.rotate, lambda s: 30 * s),
    "brightness": (does.brightness, lambda s: 1 + 0.9 * s),
    "colour": (does.colour, lambda s: 1 + 0.9 * s),
    "contrast": (does.contrast, lambda s: 1 + 0.9 * s),
    "sharpness": (does.sharpness, lambda s: 1 + 0.9 * s),
    "posterise": (does.posterise, lambda s: 8 - (4 * s.abs()).round()),
    "solarise": (does.solarise, lambda s: 1 - s.abs()),
    "autocontrast": (does.autocontrast, lambda s: s),
    "equalise": (does.equalise, lambda s: s),
}


@dataclass(frozen=True)
class RandAugment:
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

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count = len(check_images(images))
        for _ in range(self.count):
            chosen = torch.randint(len(self.operations), (count,), generator=generator)
            signs = 2.0 * torch.randint(2, (count,), generator=generator) - 1
            images = images.clone()
            for number in sorted(set(chosen.tolist())):  # images of one operation go together
                rows = (chosen == number).nonzero()[:, 0]
                operation, amount = OPERATIONS[self.operations[number]]
                amounts = amount(signs[rows] * self.strength / STRONGEST).to(images.device)
                rows = rows.to(images.device)
                images[rows] = operation(images[rows], amounts)
        return images
