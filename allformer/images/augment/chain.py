"""Augmentations one after another, and what they all check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from allformer.errors import ConfigError


class Augmentation(Protocol):
    """Images B C H W from 0 to 1 → such images; the generator says which."""

    def __call__(self, images: Tensor, generator: Generator) -> Tensor: ...


@dataclass(frozen=True)
class Chain:
    """`Chain((RandomFlip(), RandomErasing()))(images, generator)`: each on what the last gave."""

    steps: tuple[Augmentation, ...]

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


def check_images(images: Tensor) -> Tensor:
    """Refuse what is no batch of images in floating point."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ConfigError(
            f"images of {tuple(images.shape)}, {images.dtype} must be B × C × H × W in floating "
            f"point, from 0 to 1; of bytes: images / 255"
        )
    return images


def check_share(name: str, value: float) -> None:
    """Refuse what is no probability."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name}={value} must be from 0 to 1; try 0.5")


def check_range(name: str, value: tuple[float, float], most: float = float("inf")) -> None:
    """Refuse what is no range of positive numbers."""
    low, high = value
    if not 0 < low <= high <= most:
        limit = "" if most == float("inf") else f", at most {most:g}"
        raise ConfigError(f"{name}={value} must be a smaller and a larger positive number{limit}")


def uniform(count: int, generator: Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """So many numbers from `low` to `high`, drawn on the CPU."""
    return torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
