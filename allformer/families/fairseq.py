"""What Marian, BART and mBART share: fairseq's encoder-decoder, and its config.json.

A `Style` is what sets one of them apart. Which of the four tables (shared, encoder's, decoder's,
output) are one is told by the file: transformers 5 leaves apart what a file holds with numbers of
its own, whatever `tie_word_embeddings` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

from allformer.config import (
    Attention,
    Block,
    ClassHead,
    EncoderDecoder,
    Feed,
    LMHead,
    Norm,
    Position,
    Sinusoidal,
    SpanHead,
    Stack,
    Tokens,
    repeat,
)
from allformer.families import activation, pieces
from allformer.families.family import expect, one
from allformer.families.fields import Fields

LENGTH = 1024  # transformers' default
WORDS = LMHead(offset=True)
AnyHead = LMHead | ClassHead | SpanHead | None


@dataclass(frozen=True)
class Style:
    """A family's shape, and its defaults for fields that are absent."""

    name: str
    norm_at: Literal["pre", "post"]
    position: Callable[[int], Position]  # of a length
    source_norm: bool = False
    final_norm: bool = False
    start_last: bool = False
    vocab: int = 50_265
    pad: int = 1
    bos: int | None = 0
    eos: int = 2
    start: int | None = 2
    labels: int = 2

    @property
    def sinusoidal(self) -> bool:
        """Whether positions are a formula."""
        return isinstance(self.position(1), Sinusoidal)


def assemble(
    style: Style, dim: int, layers: tuple[int, int], heads: tuple[int, int], feed: tuple[int, int],
    vocab: tuple[int, int], *, act: str = "gelu", length: int = LENGTH, scale: bool = False,
    dropout: float = 0.1, attention_dropout: float = 0.0, feed_dropout: float = 0.0,
    ids: dict[str, int | None], start: int | None = None, shared: bool = True,
    head: AnyHead = WORDS,
) -> EncoderDecoder:  # fmt: skip
    """A model of this style; pairs are (encoder, decoder)."""

    def stack(side: int, causal: bool) -> Stack:
        attention = Attention(heads[side], dropout=attention_dropout)
        block = Block(
            attention, Feed(feed[side], act=act, dropout=feed_dropout),
            cross=attention if causal else None, norm_at=style.norm_at, dropout=dropout,
        )  # fmt: skip
        inside = {name: i for name, i in ids.items() if i is not None and i < vocab[side]}
        return Stack(
            dim, Tokens(vocab[side], scale=scale, pad_fixed=True, **inside),
            style.position(length), repeat(block, layers[side]), causal=causal,
            source_norm=Norm() if style.source_norm else None,
            final_norm=Norm() if style.final_norm else None, dropout=dropout,
        )  # fmt: skip

    encoder, decoder = stack(0, causal=False), stack(1, causal=True)
    return EncoderDecoder(encoder, decoder, head, shared, start, style.start_last)


def read(
    style: Style, fields: Fields, kind: str, keys: Collection[str],
    *, share: bool = True, target: int | None = None,
) -> EncoderDecoder:  # fmt: skip
    """config.json → the tree; Marian may not `share`, and have a `target` vocabulary."""
    _refuse_others(style, fields)
    vocab = fields.take("vocab_size", style.vocab)
    target = target or vocab
    return assemble(
        style,
        fields.take("d_model", 1024, "hidden_size"),
        (fields.take("encoder_layers", 12, "num_hidden_layers"), fields.take("decoder_layers", 12)),
        (
            fields.take("encoder_attention_heads", 16, "num_attention_heads"),
            fields.take("decoder_attention_heads", 16),
        ),
        (fields.take("encoder_ffn_dim", 4096), fields.take("decoder_ffn_dim", 4096)),
        (vocab, target),
        act=fields.choice("activation_function", activation.READ, "gelu"),
        length=fields.take("max_position_embeddings", LENGTH),
        scale=fields.take("scale_embedding", False),
        dropout=fields.take("dropout", 0.1),
        attention_dropout=fields.take("attention_dropout", 0.0),
        feed_dropout=fields.take("activation_dropout", 0.0),
        ids={
            "pad_id": fields.token("pad_token_id", vocab, style.pad),
            "bos_id": fields.token("bos_token_id", vocab, style.bos),
            "eos_id": fields.token("eos_token_id", vocab, style.eos),
        },
        start=fields.token("decoder_start_token_id", target, style.start),
        shared=share and sum(pieces.has(keys, name) for name in pieces.TABLES[:3]) < 2,
        head=_read_head(style, fields, kind, keys),
    )


def _refuse_others(style: Style, fields: Fields) -> None:
    """Fields of transformers 3, when one class was all of these families, and layer drop."""
    fields.must("is_encoder_decoder", True)
    fields.must("encoder_layerdrop", 0)
    fields.must("decoder_layerdrop", 0)
    fields.must("normalize_before", style.norm_at == "pre")
    fields.must("normalize_embedding", style.source_norm)
    fields.must("add_final_layer_norm", style.final_norm)
    fields.must("static_position_embeddings", style.sinusoidal)
    fields.must("do_blenderbot_90_layernorm", False)
    fields.inert("extra_pos_embeddings", "add_bias_logits", "classif_dropout")


def _read_head(style: Style, fields: Fields, kind: str, keys: Collection[str]) -> AnyHead:
    if kind == "words":
        own = pieces.has(keys, pieces.TABLES[3])
        tied = fields.take("tie_word_embeddings", True) and not own
        return LMHead(tied, offset=not keys or pieces.has(keys, "final_logits_bias"))
    if kind == "class":
        dropout = fields.take("classifier_dropout", 0.0)
        head = pieces.class_head(fields, "eos", dense="tanh", dropout=dropout)
        if not fields.raw.get("id2label") and not fields.raw.get("num_labels"):
            head = replace(head, labels=tuple(f"LABEL_{i}" for i in range(style.labels)))
        return head
    return SpanHead() if kind == "span" else None


def write(style: Style, model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    expect(isinstance(model, EncoderDecoder), "is not an encoder-decoder")
    encoder, decoder, head = model.encoder, model.decoder, model.head
    source, target = one(encoder.blocks, "shape"), one(decoder.blocks, "shape")
    at, own = source.norm_at, f"{style.name} is {style.norm_at}-norm only"
    expect(at == style.norm_at, f"is {at}-norm, and {own}")
    kind = type(style.position(1))
    expect(isinstance(encoder.position, kind), f"has no {kind.__name__} positions")
    assert encoder.position is not None
    tied = head.tied if isinstance(head, LMHead) else model.shared
    return {
        "is_encoder_decoder": True,
        "d_model": encoder.dim,
        "vocab_size": encoder.source.vocab,
        "encoder_layers": len(encoder.blocks),
        "decoder_layers": len(decoder.blocks),
        "encoder_attention_heads": source.attention.heads,
        "decoder_attention_heads": target.attention.heads,
        "encoder_ffn_dim": source.feed.width,
        "decoder_ffn_dim": target.feed.width,
        "activation_function": activation.WRITE[source.feed.act],
        "max_position_embeddings": encoder.position.length or LENGTH,
        "scale_embedding": encoder.source.scale,
        "dropout": source.dropout,
        "attention_dropout": source.attention.dropout,
        "activation_dropout": source.feed.dropout,
        "decoder_start_token_id": model.start_id if style.start is None else model.start,
        # An output table of its own beside a shared one is told by the file alone: with False,
        # transformers 5 would look for three tables.
        "tie_word_embeddings": tied or model.shared,
        **({"classifier_dropout": head.dropout} if isinstance(head, ClassHead) else {}),
        **pieces.write_tokens(encoder.source),
    }


def same(model: EncoderDecoder) -> EncoderDecoder:
    """The tree without what no file of these families can say.

    In them padding has a position (which shows with padding on the left alone) and a vector that is
    not trained; the length of sinusoids and the first token are always written out.
    """

    def stack(x: Stack) -> Stack:
        position: Any = x.position
        if position is not None:
            count = "all" if position.count == "kept" else position.count
            position = replace(position, count=count, length=position.length or LENGTH)
        return replace(x, source=replace(x.source, pad_fixed=True), position=position)

    encoder, decoder = stack(model.encoder), stack(model.decoder)
    return replace(model, encoder=encoder, decoder=decoder, start_id=model.start)
