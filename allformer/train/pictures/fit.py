"""A config tree for the images that there are: their size and channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.config import Codec, LearnedPlane, Patches, Stack


def with_images(tree: Any, image: tuple[int, ...], channels: int) -> Any:
    """A fresh tree that reads such images: `with_images(tree, (28, 28), channels=1)`."""
    if isinstance(tree, Codec):
        return replace(tree, image=image, channels=channels)  # type: ignore[call-arg]
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
    between = stack.between
    if between is not None:
        between = replace(between, shape=source.shape, front=source.placed)
    return replace(stack, source=source, position=position, between=between)


def seeing(tree: Any) -> Patches | Codec | None:
    """What of a tree reads images, if it does: its patches, or all of a codec."""
    if isinstance(tree, Codec):
        return tree
    found = (stack.source for stack in tree.stacks.values())
    return next((source for source in found if isinstance(source, Patches)), None)
