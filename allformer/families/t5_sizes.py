"""T5's tree and the published sizes: RMSNorm, no biases, unscaled scores, bucketed distances."""

from __future__ import annotations

from dataclasses import replace

from allformer.config import (
    Attention,
    Block,
    BucketBias,
    EncoderDecoder,
    Feed,
    LMHead,
    Norm,
    Stack,
    Tokens,
    repeat,
)

RMS, BUCKETS = Norm("rms", 1e-6), BucketBias()


def assemble(
    dim: int, layers: tuple[int, int], heads: int, feed: Feed, tokens: Tokens, *,
    head_dim: int = 64, norm: Norm = RMS, relative: BucketBias = BUCKETS, dropout: float = 0.1,
) -> EncoderDecoder:  # fmt: skip
    """Both stacks, without a head; `layers` of encoder and decoder."""
    size = None if head_dim * heads == dim else head_dim
    attention = Attention(heads, head_dim=size, bias=False, scale=1.0, dropout=dropout)
    feed = replace(feed, bias=False, dropout=dropout)
    block = Block(attention, feed, norm=norm, norm_at="pre", dropout=dropout)
    encoder = Stack(
        dim, tokens, None, repeat(block, layers[0]), final_norm=norm, relative=relative,
        dropout=dropout, final_dropout=dropout,
    )  # fmt: skip
    blocks = repeat(replace(block, cross=attention), layers[1])
    return EncoderDecoder(encoder, replace(encoder, blocks=blocks, causal=True), None)


def t5(
    dim: int, layers: int, heads: int, width: int, *, head_dim: int = 64, vocab: int = 32_128
) -> EncoderDecoder:
    """`t5(512, 8, 6, 1024)` is T5 v1.1's smallest: gated, with its own output table."""
    feed, tokens = Feed(width, "gelu_tanh", gated=True), Tokens(vocab, pad_id=0, eos_id=1)
    model = assemble(dim, (layers, layers), heads, feed, tokens, head_dim=head_dim)
    return replace(model, head=LMHead(tied=False), start_id=0)


def first(dim: int, layers: int, heads: int, width: int, head_dim: int = 64) -> EncoderDecoder:
    """`first(512, 6, 8, 2048)` is t5-small: relu, and the output tied to the embedding."""
    tokens = Tokens(32_128, pad_id=0, eos_id=1)
    model = assemble(dim, (layers, layers), heads, Feed(width), tokens, head_dim=head_dim)
    return replace(model, head=LMHead(scale=dim**-0.5), start_id=0)


PRESETS = {
    "t5-small": lambda: first(512, 6, 8, 2048),
    "t5-base": lambda: first(768, 12, 12, 3072),
    "t5-large": lambda: first(1024, 24, 16, 4096),
    "t5-3b": lambda: first(1024, 24, 32, 16_384, head_dim=128),
    "t5-11b": lambda: first(1024, 24, 128, 65_536, head_dim=128),
    "t5-v1.1-small": lambda: t5(512, 8, 6, 1024),
    "t5-v1.1-base": lambda: t5(768, 12, 12, 2048),
    "t5-v1.1-large": lambda: t5(1024, 24, 16, 2816),
    "t5-v1.1-xl": lambda: t5(2048, 24, 32, 5120),
    "t5-v1.1-xxl": lambda: t5(4096, 24, 64, 10_240),
}
