"""Performer (Choromanski et al., 2021): random features in place of softmax.

The sizes are those of its protein models, 36 layers over single amino acids; 256 features are what
the authors' code has by itself. No weights were published, and the paper gives no vocabulary in
numbers: 25 letters, 5 special tokens and a length of 8,192 are ours.
"""

from __future__ import annotations

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    EncoderOnly,
    Features,
    Feed,
    LMHead,
    Norm,
    Sinusoidal,
    Stack,
    Tokens,
    repeat,
)


def performer(layers: int = 36, causal: bool = False, count: int = 256) -> Stack:
    """The stack of the protein models: width 512, 8 heads, 1,024 inside."""
    attention = Attention(8, mixer=Features("favor", count))
    block = Block(attention, Feed(1024, act="gelu"), norm_at="pre")
    return Stack(
        512, Tokens(30, pad_id=0, bos_id=2, eos_id=3), Sinusoidal(length=8192),
        repeat(block, layers), causal=causal, final_norm=Norm(),
    )  # fmt: skip


PRESETS = {
    "performer-protein": lambda: EncoderOnly(performer(), LMHead()),
    "performer-protein-causal": lambda: DecoderOnly(performer(causal=True)),
}
