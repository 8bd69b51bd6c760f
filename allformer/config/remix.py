"""The same tree with another mixer: who looks at whom is one slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from allformer.config.mixer import Full, Mixer
from allformer.config.model import Model
from allformer.config.stack import Stack

Tree = TypeVar("Tree", bound=Model)


def remix(model: Tree, mixer: Mixer, stack: str | None = None) -> Tree:
    """Another mixer in every self-attention: `remix(preset("bert-base"), Window(256, 256))`.

    `stack` names the one that changes; else all do. What does not fit is refused as ever.
    """
    found: dict[str, Any] = {
        name: _remixed(slot, mixer) for name, slot in model.stacks.items() if stack in (None, name)
    }
    return replace(model, **found)


def mixes_fully(model: Model) -> bool:
    """Whether every self-attention is full."""
    blocks = (block for stack in model.stacks.values() for block in stack.blocks)
    return all(block.attention.mixer == Full() for block in blocks)


def _remixed(stack: Stack, mixer: Mixer) -> Stack:
    blocks = tuple(
        replace(block, attention=replace(block.attention, mixer=mixer)) for block in stack.blocks
    )
    return replace(stack, blocks=blocks)
