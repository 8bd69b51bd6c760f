"""GPT-3 (Brown et al., 2020): GPT-2's shape, every other layer with windowed attention.

There are no public weights, and no class in transformers: it is built, counted and trained here,
and saved in our own layout.
"""

from __future__ import annotations

from dataclasses import replace

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Feed,
    Learned,
    Norm,
    Stack,
    Tokens,
    Window,
    cycle,
)


def gpt3(dim: int, layers: int, heads: int, head_dim: int, window: int = 256) -> DecoderOnly:
    """GPT-2's shape with every other layer looking back no further than `window` tokens.

    The paper's table 2.1 gives sizes and head_dim (its 13B has heads·head_dim ≠ dim); it says
    "alternating dense and locally banded" after the Sparse Transformer, not how wide: 256 is ours.
    """
    attention = Attention(heads, head_dim=head_dim, dropout=0.1)
    full = Block(attention, Feed(4 * dim, act="gelu_tanh"), norm_at="pre")
    banded = replace(full, attention=replace(attention, mixer=Window(window - 1)))
    stack = Stack(
        dim, Tokens(50_257, bos_id=50_256, eos_id=50_256), Learned(2048),
        cycle((full, banded), layers), causal=True, final_norm=Norm(),
    )  # fmt: skip
    return DecoderOnly(stack)


PRESETS = {
    "gpt3-small": lambda: gpt3(768, 12, 12, 64),
    "gpt3-medium": lambda: gpt3(1024, 24, 16, 64),
    "gpt3-large": lambda: gpt3(1536, 24, 16, 96),
    "gpt3-xl": lambda: gpt3(2048, 24, 24, 128),
    "gpt3-2.7b": lambda: gpt3(2560, 32, 32, 80),
    "gpt3-6.7b": lambda: gpt3(4096, 32, 32, 128),
    "gpt3-13b": lambda: gpt3(5140, 40, 40, 128),
    "gpt3-175b": lambda: gpt3(12_288, 96, 96, 128),
}
