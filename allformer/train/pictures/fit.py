"""A config tree for the images that there are: their size and channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.config import LearnedPlane, Patches, Stack


def with_images(tree: Any, image: tuple[int, ...], channels: int) -> Any:
    """A fresh tree that reads such images: `with_images(tree, (28, 28), channels=1)`."""
    changes = {
        name: _fitted(stack, image, channels)
        for name, stack in tree.stacks.items()
        if isinstance(stack.source, Patches)
    }
    return replace(tree, **changes)


def _fitted(stack: Stack, image: tuple[int, ...], channels: int) -> Stack:
    assert isinstance(stack.source, Patches)
    source = replace(stack.source, image=image, channels=channels)
    position = stack.position
    if isinstance(position, LearnedPlane):
        position = replace(position, shape=source.shape, front=source.placed)
    return replace(stack, source=source, position=position)


def seeing(tree: Any) -> Patches | None:
    """The patches that a tree reads, if it reads images."""
    found = (stack.source for stack in tree.stacks.values())
    return next((source for source in found if isinstance(source, Patches)), None)
