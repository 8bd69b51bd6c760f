"""The config.json of T5 and mT5.

Whether the output has its own table is told by the file. Whether its input is scaled by d^-½ is
told by `scale_decoder_outputs` (transformers 5) or by `tie_word_embeddings` (before).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from allformer.config import (
    Attention,
    Block,
    BucketBias,
    ClassHead,
    EncoderDecoder,
    EncoderOnly,
    Feed,
    LMHead,
    Norm,
    Stack,
    repeat,
)
from allformer.families import activation, layer_map
from allformer.families.family import ENDINGS, as_told, expect, fit, head_kind, one
from allformer.families.fields import Fields
from allformer.families.heads import SmallHead, small_head
from allformer.families.kinds import FLAG, LAYERS, WHOLE
from allformer.families.tokens import read_tokens, write_tokens

Model = EncoderDecoder | EncoderOnly


@dataclass(frozen=True)
class Style:
    """A family's name, and whether it can scale the output's input."""

    name: str
    scales: bool = True


def read_t5(style: Style, fields: Fields, architecture: str, keys: Collection[str]) -> Model:
    """config.json → the tree."""
    kind = ENDINGS[architecture.removeprefix(style.name)]
    encoder = _read_encoder(fields)
    head = _read_head(style, fields, kind, keys, encoder.dim)
    if kind in ("encoder", "token"):
        fields.take("is_encoder_decoder", None, kind=FLAG)
        fields.inert(WHOLE, "num_decoder_layers")
        fields.inert(FLAG, "is_causal")
        return EncoderOnly(encoder, head)
    fields.must("is_encoder_decoder", True)
    fields.causal()
    block = encoder.blocks[0]
    layers = fields.take("num_decoder_layers", len(encoder.blocks), kind=LAYERS)
    blocks = repeat(replace(block, cross=block.attention), layers)
    start = fields.token("decoder_start_token_id", encoder.source.vocab)
    decoder = replace(encoder, blocks=blocks, causal=True)
    return EncoderDecoder(encoder, decoder, head, start_id=start)


def _read_encoder(fields: Fields) -> Stack:
    fields.inert(WHOLE, "n_positions")  # nothing here has a length
    dim = fields.take("d_model", older="hidden_size")
    heads = fields.take("num_heads", older="num_attention_heads")
    head_dim = fields.take("d_kv", older="head_dim")
    size, dropout = None if head_dim * heads == dim else head_dim, fields.take("dropout_rate")
    norm = Norm("rms", float(fields.take("layer_norm_epsilon")))
    attention = Attention(heads, head_dim=size, bias=False, scale=1.0, dropout=dropout)
    acts = activation.read_gated(fields)
    feed = Feed(fields.take("d_ff"), **acts, bias=False, dropout=dropout)
    block = Block(attention, feed, norm=norm, norm_at="pre", dropout=dropout)
    return Stack(
        dim,
        read_tokens(fields),
        None,
        repeat(block, fields.take("num_layers", older="num_hidden_layers", kind=LAYERS)),
        final_norm=norm,
        relative=BucketBias(
            fields.take("relative_attention_num_buckets"),
            fields.take("relative_attention_max_distance"),
        ),
        dropout=dropout,
        final_dropout=dropout,
    )


def _read_head(
    style: Style, fields: Fields, kind: str, keys: Collection[str], dim: int
) -> LMHead | SmallHead:
    if kind != "words":
        fields.inert(FLAG, "scale_decoder_outputs")
        return small_head(fields, kind, "eos", dense="tanh")
    flag = fields.take("tie_word_embeddings")
    scaled = fields.flag("scale_decoder_outputs", flag) and style.scales
    tables = [layer_map.has(keys, name) for name in layer_map.TABLES]
    own = tables[3] and any(tables[:3])
    return LMHead(not own if keys else flag, scale=dim**-0.5 if scaled else None)


def write_t5(style: Style, model: Model) -> dict[str, Any]:
    """The tree → config.json."""
    expect(isinstance(model, EncoderDecoder | EncoderOnly), "is not an encoder-decoder")
    stack, head = model.encoder, model.head
    block = one(stack.blocks, "shape")
    relative = fit(stack.relative, BucketBias, "has no bucketed distances")
    raw: dict[str, Any] = {
        **write_tokens(stack.source),
        "is_encoder_decoder": isinstance(model, EncoderDecoder),
        "d_model": stack.dim,
        "d_kv": block.attention.size(stack.dim),
        "d_ff": block.feed.width,
        "num_layers": len(stack.blocks),
        "num_heads": block.attention.heads,
        "relative_attention_num_buckets": relative.buckets,
        "relative_attention_max_distance": relative.max_distance,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.norm.eps,
        **activation.write_gated(block.feed),
    }
    if isinstance(head, ClassHead):
        raw["classifier_dropout"] = head.dropout
    if isinstance(model, EncoderOnly):
        expect(kind_of(model) in ("encoder", "token"), "has a head on its encoder alone")
        return raw
    raw["num_decoder_layers"] = len(model.decoder.blocks)
    raw["decoder_start_token_id"] = model.start
    if isinstance(head, LMHead):
        scaled = head.scale is not None
        expect(style.scales or not scaled, f"scales its output, and {style.name} never does")
        raw["tie_word_embeddings"] = head.tied  # transformers 4 takes it for both
        if style.scales:
            raw["scale_decoder_outputs"] = scaled
    return raw


def kind_of(model: Model) -> str:
    """The kind of head; "encoder" for the bare encoder."""
    alone = isinstance(model, EncoderOnly) and model.head is None
    return "encoder" if alone else head_kind(model)


def _trained(stack: Stack) -> Stack:
    """A stack without what no file can say: padding is trained."""
    return replace(stack, source=replace(stack.tokens, pad_fixed=False))


same = partial(as_told, _trained)
