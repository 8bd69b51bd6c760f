"""Augmentations one after another, and what they all check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from allformer.errors import ConfigError

Size = tuple[int, int]  # height, width
Drawn = tuple[Tensor, ...]  # what chance has said, on the host


class Augmentation(ABC):
    """Images B C H W from 0 to 1 → such images; the generator says which.

    What is left to chance is drawn on the host (`draw`), what is done with it (`apply`) on the
    images' device. Where the second launches the same kernels whatever was drawn (`fixed`), it can
    be captured as a graph, and a small batch waits no longer for them to be launched one by one.
    """

    @abstractmethod
    def draw(self, count: int, size: Size, generator: Generator) -> Drawn:
        """For so many images of a size, on the host."""

    @abstractmethod
    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        """What was drawn, done; it may lie on the images' device already."""

    def after(self, size: Size) -> Size:
        """The size of images that had this one."""
        return size

    def fixed(self, size: Size) -> bool:
        """Whether what is done to images of a size is the same work whatever is drawn."""
        return True

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, _, height, width = check_images(images).shape
        return self.apply(images, self.draw(count, (height, width), generator))


@dataclass(frozen=True)
class Chain(Augmentation):
    """`Chain((RandomFlip(), RandomErasing()))(images, generator)`: each on what the last gave."""

    steps: tuple[Augmentation, ...]

    def _sized(self, size: Size) -> list[tuple[Augmentation, Size]]:
        """Each step, and the size of what it is given."""
        found = []
        for step in self.steps:
            found.append((step, size))
            size = step.after(size)
        return found

    def draw(self, count: int, size: Size, generator: Generator) -> tuple[Drawn, ...]:  # type: ignore[override]
        """Of each step."""
        return tuple(step.draw(count, given, generator) for step, given in self._sized(size))

    def apply(self, images: Tensor, drawn: tuple[Drawn, ...]) -> Tensor:  # type: ignore[override]
        """One after another."""
        for step, own in zip(self.steps, drawn, strict=True):
            images = step.apply(images, own)
        return images

    def after(self, size: Size) -> Size:
        for step in self.steps:
            size = step.after(size)
        return size

    def fixed(self, size: Size) -> bool:
        return all(step.fixed(given) for step, given in self._sized(size))


def there(x: Tensor, images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """On the images' device; not every one has fp64, so a `dtype` is taken on the way."""
    return x.to(images.device, dtype or x.dtype, non_blocking=True)


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
