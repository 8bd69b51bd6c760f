"""What BERT, RoBERTa and ALBERT have in common in config.json: post-norm layers, their heads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import (
    Attention,
    Block,
    ChoiceHead,
    ClassHead,
    DecoderOnly,
    EncoderOnly,
    Feed,
    Head,
    Learned,
    LMHead,
    Model,
    Norm,
    Pool,
    Stack,
    Transform,
    heads_of,
    repeat,
    words_of,
)
from allformer.errors import CheckpointError
from allformer.families import activation
from allformer.families.family import expect, fit, head_kind, one
from allformer.families.fields import Fields
from allformer.families.kinds import FLAG, LAYERS, WORDS
from allformer.families.tokens import read_tokens, write_tokens


def read_stack(fields: Fields) -> Stack:
    """The layers that config.json means."""
    fields.must("position_embedding_type", "absolute")
    fields.inert(FLAG, "is_causal")  # of its decoders
    fields.inert(WORDS, "language", "name")  # of the data, and of the model: Haystack's
    norm = Norm("layer", float(fields.take("layer_norm_eps")))
    attention = Attention(
        fields.take("num_attention_heads"), dropout=fields.take("attention_probs_dropout_prob")
    )
    act = fields.choice("hidden_act", activation.READ)
    feed, dropout = Feed(fields.take("intermediate_size"), act), fields.take("hidden_dropout_prob")
    block = Block(attention, feed, norm=norm, dropout=dropout)
    return Stack(
        fields.take("hidden_size"),
        read_tokens(fields, types=fields.take("type_vocab_size"), pad_fixed=True),
        Learned(fields.take("max_position_embeddings"), count="all"),
        repeat(block, fields.take("num_hidden_layers", kind=LAYERS)),
        source_norm=norm,
        dropout=dropout,
    )


def words_head(fields: Fields, stack: Stack, act: str | None = None) -> LMHead:
    """The head that fills in masked words; its layer is like the others, but for its `act`."""
    block = stack.blocks[0]
    transform = Transform(act or block.feed.act, block.norm)
    return LMHead(fields.take("tie_word_embeddings", True), bias=True, transform=transform)


def with_head(stack: Stack, head: Head | None, keys: Collection[str], pooler: str) -> EncoderOnly:
    """The model, with a pooler where its head reads one.

    The bare model may have one or not: the weights tell. It has one by default.
    """
    if head is None:
        pooled = not keys or f"{pooler}.weight" in keys
    else:
        pooled = any(x.pooled for x in heads_of(head))
    return EncoderOnly(stack, head, Pool() if pooled else None)


def decoder(fields: Fields, stack: Stack, architecture: str) -> DecoderOnly:
    """The same layers, looking back alone, below the head over words."""
    if not fields.flag("is_decoder", False):
        raise CheckpointError(
            f"config.json has is_decoder={fields.raw.get('is_decoder')!r}, with which a "
            f"{architecture} looks ahead; set it to true"
        )
    return DecoderOnly(replace(stack, causal=True), words_head(fields, stack))


def kind(model: Model) -> str:
    """That of the head; "causal" for `decoder`."""
    writes = isinstance(model, DecoderOnly) and isinstance(model.head, LMHead)
    return "causal" if writes else head_kind(model)


def write_either(model: Model, stack: Stack | None = None) -> dict[str, Any]:
    """The inverse of `read_stack`, or of `decoder`, with what the head drops; of another `stack`
    than the model's own, if it is given."""
    writes = kind(model) == "causal"
    expect(writes or isinstance(model, EncoderOnly), "is neither an encoder nor one that writes")
    alike = EncoderOnly(replace(stack or model.reader, causal=False), model.head, model.pool)
    out = write_stack(alike) | classifier_dropout(alike)
    return out | ({"is_decoder": True} if writes else {})


def write_stack(model: EncoderOnly) -> dict[str, Any]:
    """The inverse of `read_stack`, and whether the output is tied."""
    stack = fit(model, EncoderOnly, "is not an encoder").encoder
    block = one(stack.blocks, "shape")
    position = fit(stack.position, Learned, "has no learned positions")
    expect(stack.source_norm is not None, "has no norm after the embedding")
    expect(stack.source.types > 0, "has no token types")
    out = {
        **write_tokens(stack.source),
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feed.width,
        "hidden_act": activation.WRITE[block.feed.act],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "max_position_embeddings": position.offset + position.length,
        "type_vocab_size": stack.source.types,
        "layer_norm_eps": block.norm.eps,
    }
    words = words_of(model.head)
    if words is not None:
        expect(words.transform is not None, "has no dense layer before the output")
        out["tie_word_embeddings"] = words.tied
    return out


def classifier_dropout(model: EncoderOnly) -> dict[str, Any]:
    """What BERT and RoBERTa say where a head drops more or less than the layers do."""
    head = model.head
    if not isinstance(head, ChoiceHead | ClassHead) or head.dropout == model.encoder.dropout:
        return {}
    return {"classifier_dropout": head.dropout}
