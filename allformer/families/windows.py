"""`attention_window` of Longformer and LED: one number, or one for each layer; half a side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.config import Block, Full, GlobalWindow, Stack
from allformer.errors import CheckpointError
from allformer.families.family import expect
from allformer.families.fields import Fields
from allformer.families.kinds import WINDOWS

FIELD = "attention_window"


def read_windows(fields: Fields, stack: Stack) -> Stack:
    """The stack with the windows that config.json names."""
    given, layers = fields.take(FIELD, kind=WINDOWS), len(stack.blocks)
    widths = given if isinstance(given, list) else [given] * layers
    if len(widths) != layers:
        raise CheckpointError(
            f"config.json has {FIELD} for {len(widths)} layers, but there are {layers}; give one "
            f"number, or one for each layer"
        )
    blocks = zip(stack.blocks, widths, strict=True)
    return replace(stack, blocks=tuple(_mixed(b, GlobalWindow(n // 2, n // 2)) for b, n in blocks))


def without_windows(stack: Stack) -> tuple[Stack, dict[str, Any]]:
    """In a writer: the inverse of `read_windows`, a stack that looks everywhere and the field."""
    mixers = [block.attention.mixer for block in stack.blocks]
    widths = []
    for mixer in mixers:
        even = isinstance(mixer, GlobalWindow) and mixer.left == mixer.right > 0
        expect(even, "has no windows with global tokens, equally wide on both sides")
        assert isinstance(mixer, GlobalWindow)
        widths.append(2 * mixer.left)
    full = tuple(_mixed(block, Full()) for block in stack.blocks)
    return replace(stack, blocks=full), {FIELD: widths}


def _mixed(block: Block, mixer: Any) -> Block:
    return replace(block, attention=replace(block.attention, mixer=mixer))
