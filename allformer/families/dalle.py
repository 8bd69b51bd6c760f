"""DALL-E's decoder (Ramesh et al., 2021): text, then the codes of an image, in one sequence.

Appendix B.1: a code looks along its row in most layers, up its column in the second of every four,
and around itself in the last one. There are no public weights of it.
"""

from __future__ import annotations

from dataclasses import replace

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
    refuse,
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
    attention_dropout: float = 0.0,
    pad_id: int = 0,
) -> DecoderOnly:
    """`dalle(256, 6, 4, words=100, codes=512, text=16, shape=(7, 7), kernel=5)`."""
    blocks = tuple(
        Block(
            Attention(heads, mixer=mixer, dropout=attention_dropout),
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


def fitted(
    tree: DecoderOnly, *, words: int, codes: int, text: int, shape: tuple[int, ...], pad_id: int
) -> DecoderOnly:
    """The same decoder for another vocabulary, length of text and grid of codes."""
    stack = tree.decoder
    source = replace(
        fit_source(stack), vocab=words + codes, words=words, length=text, shape=shape, pad_id=pad_id
    )
    blocks = tuple(_masked(block, text, shape[1]) for block in stack.blocks)
    position = TextAndPlane(text, shape) if stack.position is not None else None
    return replace(tree, decoder=replace(stack, source=source, position=position, blocks=blocks))


def fit_source(stack: Stack) -> Joined:
    """The source that tells words from codes; a stack without one is refused."""
    if not isinstance(stack.source, Joined):
        refuse(stack, "source", "reads no text and image in one sequence", "give it Joined(…)")
    return stack.source


def _masked(block: Block, text: int, width: int) -> Block:
    mixer = block.attention.mixer
    if not isinstance(mixer, ImageMask):
        return block
    mixer = replace(mixer, text=text, width=width)
    return replace(block, attention=replace(block.attention, mixer=mixer))


PRESETS = {"dalle": lambda: dalle(3968, 64, 62)}
