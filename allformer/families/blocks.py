"""What BigBird and BigBird-Pegasus say of their blocks in config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.config import Block, BlockSparse, Full, Learned, Mixer, Stack
from allformer.families.family import expect
from allformer.families.fields import Fields
from allformer.families.kinds import WHOLE

USUAL = {"attention_type": "block_sparse", "block_size": 64, "num_random_blocks": 3}
_TYPES = {name: name for name in ("block_sparse", "original_full")}


def read_blocks(fields: Fields, stack: Stack) -> Stack:
    """The stack with the mixers that config.json means: each layer draws by its number."""
    mixers: list[Mixer] = [Full() for _ in stack.blocks]
    if fields.choice("attention_type", _TYPES) == "block_sparse":
        sizes = fields.take("block_size"), fields.take("num_random_blocks")
        length = fields.take("max_position_embeddings")
        mixers = [BlockSparse(*sizes, seed=i, table=length) for i in range(len(mixers))]
    else:
        fields.inert(WHOLE, "block_size", "num_random_blocks")
    each = zip(stack.blocks, mixers, strict=True)
    return replace(stack, blocks=tuple(with_attention(block, mixer=mixer) for block, mixer in each))


def without_blocks(stack: Stack) -> tuple[Stack, dict[str, Any]]:
    """The inverse: the stack as if it looked at everything, and what config.json says."""
    mixers = [block.attention.mixer for block in stack.blocks]
    blocks = tuple(with_attention(block, mixer=Full()) for block in stack.blocks)
    return replace(stack, blocks=blocks), _said(mixers, stack)


def _said(mixers: list[Mixer], stack: Stack) -> dict[str, Any]:
    first = mixers[0]
    if not isinstance(first, BlockSparse):
        expect(mixers == [Full()] * len(mixers), "looks neither at blocks nor at everything")
        return {"attention_type": "original_full"}
    length = stack.position.length if isinstance(stack.position, Learned) else first.table
    seeded = [replace(first, seed=i, table=length) for i in range(len(mixers))]
    expect(mixers == seeded, "draws its blocks otherwise than by the number of the layer")
    return {
        "attention_type": "block_sparse",
        "block_size": first.block,
        "num_random_blocks": first.random,
    }


def with_attention(block: Block, **changes: Any) -> Block:
    """A block whose attention is changed: `with_attention(block, mixer=Full())`."""
    return replace(block, attention=replace(block.attention, **changes))
