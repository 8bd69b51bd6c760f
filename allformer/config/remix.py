"""The same tree with another mixer: who looks at whom is one slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from allformer.config.mixer import Full, Mixer
from allformer.config.model import Model
from allformer.config.stack import Stack

Tree = TypeVar("Tree", bound=Model)


def remix(model: Tree, mixer: Mixer | Callable[[int], Mixer], stack: str | None = None) -> Tree:
    """Another mixer in every self-attention: `remix(preset("bert-base"), Window(256, 256))`.

    Layers may differ: `remix(tree, lambda layer: BlockSparse(seed=layer))`. `stack` names the one
    that changes; else all do. What does not fit is refused as ever.
    """
    found: dict[str, Any] = {
        name: _remixed(slot, mixer) for name, slot in model.stacks.items() if stack in (None, name)
    }
    return replace(model, **found)


def mixes_fully(model: Model) -> bool:
    """Whether every self-attention is full."""
    blocks = (block for stack in model.stacks.values() for block in stack.blocks)
    return all(block.attention.mixer == Full() for block in blocks)


def _remixed(stack: Stack, mixer: Mixer | Callable[[int], Mixer]) -> Stack:
    layers = stack.share or range(len(stack.blocks))  # shared weights need equal blocks
    blocks = []
    for i, block in zip(layers, stack.blocks, strict=True):
        own = mixer if isinstance(mixer, Mixer) else mixer(i)
        blocks.append(replace(block, attention=replace(block.attention, mixer=own)))
    return replace(stack, blocks=tuple(blocks))
