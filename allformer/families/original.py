"""The original Transformer (Vaswani et al., 2017): the paper's two sizes, and small ones.

Dropout stands where section 5.4 puts it: on each sub-layer's output and on the embedded input,
not on the attention weights nor inside the feed-forward layer.
"""

from __future__ import annotations

from dataclasses import replace

from allformer.config import (
    Attention,
    Block,
    EncoderDecoder,
    Feed,
    LMHead,
    Norm,
    Sinusoidal,
    Stack,
    Tokens,
    repeat,
)

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # the order in which our tokenisers number them


def transformer(
    dim: int,
    heads: int,
    feed: int,
    layers: int,
    *,
    vocab: int,
    target_vocab: int | None = None,
    decoder_layers: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    feed_dropout: float = 0.0,
    act: str = "relu",
    norm_at: str = "post",
    layout: str = "interleaved",
    head: LMHead | None = None,
) -> EncoderDecoder:
    """An encoder-decoder as in the paper: `transformer(512, 8, 2048, 6, vocab=37_000)`.

    One `vocab` shares its table between both embeddings and the output (section 3.4); a
    `target_vocab` keeps the two apart. `attention_dropout` (on the weights) and `feed_dropout` (on
    the inner layer) go beyond the paper.
    """
    attention = Attention(heads, dropout=attention_dropout)
    block = Block(
        attention,
        Feed(feed, act=act, dropout=feed_dropout),
        norm_at=norm_at,  # type: ignore[arg-type]
        dropout=dropout,
    )
    cross = replace(block, cross=attention)

    def stack(tokens: int, blocks: tuple[Block, ...], causal: bool) -> Stack:
        return Stack(
            dim=dim,
            source=Tokens(tokens, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS),
            position=Sinusoidal(layout=layout),  # type: ignore[arg-type]
            blocks=blocks,
            causal=causal,
            final_norm=Norm() if norm_at == "pre" else None,  # pre-norm leaves the sum unnormed
            dropout=dropout,
        )

    return EncoderDecoder(
        encoder=stack(vocab, repeat(block, layers), causal=False),
        decoder=stack(target_vocab or vocab, repeat(cross, decoder_layers or layers), causal=True),
        head=head or LMHead(tied=target_vocab is None),
        shared=target_vocab is None,
    )


PRESETS = {
    # The paper's table 3, with its shared English-German vocabulary.
    "original-base": lambda: transformer(512, 8, 2048, 6, vocab=37_000, dropout=0.1),
    "original-big": lambda: transformer(1024, 16, 4096, 6, vocab=37_000, dropout=0.3),
    # For a laptop. Sines before cosines, as Marian has them.
    "original-tiny": lambda: transformer(128, 4, 512, 2, vocab=1_000, dropout=0.1, layout="halves"),
    "original-small": lambda: transformer(
        256, 4, 1024, 3, vocab=8_000, dropout=0.1, layout="halves"
    ),
}
