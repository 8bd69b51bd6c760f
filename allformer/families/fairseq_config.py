"""The config.json of Marian, BART, mBART and LED.

Which of the four tables (shared, encoder's, decoder's, output) are one is told by the file:
transformers 5 leaves apart what a file holds with numbers of its own, whatever
`tie_word_embeddings` says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from allformer.config import (
    Attention,
    Block,
    ClassHead,
    EncoderDecoder,
    Feed,
    LMHead,
    Norm,
    Sinusoidal,
    Stack,
    repeat,
)
from allformer.families import activation, layer_map
from allformer.families.fairseq import LENGTH, Style
from allformer.families.family import as_told, expect, fit, one
from allformer.families.fields import Fields
from allformer.families.heads import SmallHead, small_head
from allformer.families.kinds import FLAG, LAYERS, LIST, NUMBER, WHOLE
from allformer.families.tokens import read_tokens, write_tokens


def read_fairseq(
    style: Style, fields: Fields, kind: str, keys: Collection[str],
    *, share: bool = True, target: int | None = None,
) -> EncoderDecoder:  # fmt: skip
    """config.json → the tree; Marian may not `share`, and have a `target` vocabulary."""
    _refuse_others(style, fields)
    encoder = _read_stack(style, fields, "encoder")
    decoder = _read_stack(style, fields, "decoder", target)
    return EncoderDecoder(
        encoder,
        decoder,
        _read_head(fields, kind, keys),
        shared=share and sum(layer_map.has(keys, name) for name in layer_map.TABLES[:3]) < 2,
        start_id=fields.token("decoder_start_token_id", decoder.source.vocab),
        start_last=style.start_last,
    )


def _read_stack(style: Style, fields: Fields, side: str, vocab: int | None = None) -> Stack:
    causal, dropout = side == "decoder", fields.take("dropout")
    attention = Attention(
        fields.take(f"{side}_attention_heads", older=None if causal else "num_attention_heads"),
        dropout=fields.take("attention_dropout"),
    )
    feed = Feed(
        fields.take(f"{side}_ffn_dim"),
        act=fields.choice("activation_function", activation.READ),
        dropout=fields.take("activation_dropout"),
    )
    cross = attention if causal else None
    block = Block(attention, feed, cross, norm_at=style.norm_at, dropout=dropout)
    return Stack(
        fields.take("d_model", older="hidden_size"),
        read_tokens(fields, vocab, scale=fields.take("scale_embedding"), pad_fixed=True),
        style.position(fields.take(style.length.format(side=side))),
        repeat(block, _layers(fields, side)),
        causal=causal,
        source_norm=Norm() if style.source_norm else None,
        final_norm=Norm() if style.final_norm else None,
        dropout=dropout,
    )


def _layers(fields: Fields, side: str) -> int:
    older = "num_hidden_layers" if side == "encoder" else None
    return int(fields.take(f"{side}_layers", older=older, kind=LAYERS))


def _refuse_others(style: Style, fields: Fields) -> None:
    """Fields of transformers 3, when one class was all of these families, and layer drop."""
    fields.must("is_encoder_decoder", True)
    fields.inert(NUMBER, "encoder_layerdrop", "decoder_layerdrop")  # of training: see train.weights
    fields.must("normalize_before", style.norm_at == "pre")
    fields.must("normalize_embedding", style.source_norm)
    fields.must("add_final_layer_norm", style.final_norm)
    fields.must("static_position_embeddings", isinstance(style.position(1), Sinusoidal))
    fields.must("do_blenderbot_90_layernorm", False)
    fields.inert(WHOLE, "extra_pos_embeddings")
    fields.inert(LIST, "student_encoder_layers", "student_decoder_layers")  # of those distilled
    fields.inert(NUMBER, "replacing_rate", "save_step")
    fields.inert(FLAG, "add_bias_logits")
    fields.inert(NUMBER, "classif_dropout")
    fields.causal()


def _read_head(fields: Fields, kind: str, keys: Collection[str]) -> LMHead | SmallHead:
    if kind != "words":
        return small_head(fields, kind, "eos", dense="tanh")
    tied = fields.take("tie_word_embeddings", True) and not layer_map.has(keys, layer_map.TABLES[3])
    return LMHead(tied, offset=not keys or layer_map.has(keys, "final_logits_bias"))


def write_fairseq(style: Style, model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    model = fit(model, EncoderDecoder, "is not an encoder-decoder")
    encoder, decoder, head = model.encoder, model.decoder, model.head
    source, target = one(encoder.blocks, "shape"), one(decoder.blocks, "shape")
    at, own = source.norm_at, f"{style.name} is {style.norm_at}-norm only"
    expect(at == style.norm_at, f"is {at}-norm, and {own}")
    kind = type(style.position(1))
    lengths = {}
    for side, stack in reversed(model.stacks.items()):  # the encoder's, where one field serves both
        position = fit(stack.position, kind, f"has no {kind.__name__} positions")
        lengths[style.length.format(side=side)] = position.trained or LENGTH
    tied = head.tied if isinstance(head, LMHead) else model.shared
    return {
        **write_tokens(encoder.source),
        "is_encoder_decoder": True,
        "d_model": encoder.dim,
        "encoder_layers": len(encoder.blocks),
        "decoder_layers": len(decoder.blocks),
        "encoder_attention_heads": source.attention.heads,
        "decoder_attention_heads": target.attention.heads,
        "encoder_ffn_dim": source.feed.width,
        "decoder_ffn_dim": target.feed.width,
        "activation_function": activation.WRITE[source.feed.act],
        **lengths,
        "scale_embedding": encoder.source.scale,
        "dropout": source.dropout,
        "attention_dropout": source.attention.dropout,
        "activation_dropout": source.feed.dropout,
        "decoder_start_token_id": model.start_id if style.start_last else model.start,
        # An output table of its own beside a shared one is told by the file alone: with False,
        # transformers 5 would look for three tables.
        "tie_word_embeddings": tied or model.shared,
        **({"classifier_dropout": head.dropout} if isinstance(head, ClassHead) else {}),
    }


def _told(stack: Stack) -> Stack:
    """A stack without what no file of these families can say.

    In them padding has a position (which shows with padding on the left alone) and a vector that is
    not trained; the length of sinusoids is always written out, and they are rounded.
    """
    position: Any = stack.position
    if position is not None:
        count = "all" if position.count == "kept" else position.count
        position = replace(position, count=count, length=position.length or LENGTH)
        if isinstance(position, Sinusoidal):
            position = replace(position, rounded=True)
    return replace(stack, source=replace(stack.tokens, pad_fixed=True), position=position)


same = partial(as_told, _told)
