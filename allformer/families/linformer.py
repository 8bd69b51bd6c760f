"""Linformer (Wang et al., 2020): RoBERTa's shape over projected keys and values.

The paper's table 2 has rows of 512 and of 1,024 tokens, and one projection for keys, values and all
layers as good as many. No weights were published: it is built, counted and trained here, and saved
in our own layout.
"""

from __future__ import annotations

from dataclasses import replace

from allformer.config import EncoderOnly, Learned, LMHead, LowRank, Transform
from allformer.families import roberta


def linformer(length: int = 512, rank: int = 256, share: str = "layers") -> EncoderOnly:
    """RoBERTa-base that reads masked text of up to `length` tokens by `rank` keys."""
    model = roberta.FAMILY.make(roberta.PRESETS["roberta-base"])
    assert isinstance(model, EncoderOnly)
    stack = model.encoder
    mixer = LowRank(rank, length, share)  # type: ignore[arg-type]
    blocks = tuple(
        replace(block, attention=replace(block.attention, mixer=mixer)) for block in stack.blocks
    )
    assert isinstance(stack.position, Learned)
    position = replace(stack.position, length=length)
    head = LMHead(bias=True, transform=Transform("gelu", stack.blocks[0].norm))
    return EncoderOnly(replace(stack, position=position, blocks=blocks), head)


PRESETS = {
    "linformer-base": linformer,
    "linformer-base-1024": lambda: linformer(1024),
}
