"""DALL-E's decoder (Ramesh et al., 2021): text, then the codes of an image, in one sequence.

Appendix B.1: a code looks along its row in most layers, up its column in the second of every four,
and around itself in the last one. There are no public weights of it.
"""

from __future__ import annotations

from allformer.config import (
    Attention,
    Block,
    ColumnMask,
    DecoderOnly,
    Feed,
    ImageMask,
    Joined,
    JoinedHead,
    NearMask,
    Norm,
    RowMask,
    Stack,
    TextAndPlane,
)


def dalle(
    dim: int,
    layers: int,
    heads: int,
    *,
    words: int = 16_384,
    codes: int = 8192,
    text: int = 256,
    shape: tuple[int, int] = (32, 32),
    kernel: int = 11,
    feed: int | None = None,
    dropout: float = 0.0,
    pad_id: int = 0,
) -> DecoderOnly:
    """`dalle(256, 6, 4, words=100, codes=512, text=16, shape=(7, 7), kernel=5)`."""
    blocks = tuple(
        Block(
            Attention(heads, mixer=mixer),
            Feed(feed or 4 * dim, act="gelu"),
            norm_at="pre",
            dropout=dropout,
        )
        for mixer in masks(layers, text, shape[1], kernel)
    )
    stack = Stack(
        dim,
        Joined(words + codes, pad_id=pad_id, words=words, length=text, shape=shape),
        TextAndPlane(text, shape),
        blocks,
        causal=True,
        final_norm=Norm(),
        dropout=dropout,
    )
    return DecoderOnly(stack, JoinedHead(tied=False))


def masks(layers: int, text: int, width: int, kernel: int = 11) -> tuple[ImageMask, ...]:
    """Who looks at whom in each layer: `masks(4, 256, 32)` is row, column, row, around."""
    row, column = RowMask(text, width), ColumnMask(text, width)
    before = tuple(column if i % 4 == 1 else row for i in range(layers - 1))
    return (*before, NearMask(text, width, kernel))


PRESETS = {"dalle": lambda: dalle(3968, 64, 62)}
