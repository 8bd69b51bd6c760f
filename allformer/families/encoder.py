"""What BERT, RoBERTa and ALBERT have in common: post-norm layers, learned positions, heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch

from allformer.config import (
    Attention,
    Block,
    ClassHead,
    EncoderOnly,
    Feed,
    Learned,
    LMHead,
    Norm,
    Pool,
    PretrainHead,
    Stack,
    Tokens,
    Transform,
    repeat,
)
from allformer.families import activation, pieces
from allformer.families.family import expect, one
from allformer.families.fields import Fields
from allformer.families.weights import Alias, Derived, Ignored, Op, Renamed, Same, Unused


def read_stack(fields: Fields, usual: Mapping[str, Any]) -> Stack:
    """The layers that config.json means; `usual` holds the values of absent fields."""

    def take(name: str) -> Any:
        return fields.take(name, usual[name])

    fields.must("position_embedding_type", "absolute")
    fields.inert("language", "name")  # of the data, and of the model: Haystack's
    norm = Norm("layer", float(take("layer_norm_eps")))
    block = Block(
        Attention(take("num_attention_heads"), dropout=take("attention_probs_dropout_prob")),
        Feed(
            take("intermediate_size"),
            act=fields.choice("hidden_act", activation.READ, usual["hidden_act"]),
        ),
        norm=norm,
        dropout=take("hidden_dropout_prob"),
    )
    vocab = take("vocab_size")
    special = {
        name: fields.token(f"{name}_token_id", vocab, usual.get(f"{name}_token_id"))
        for name in ("pad", "bos", "eos")
    }
    return Stack(
        take("hidden_size"),
        Tokens(
            vocab,
            types=take("type_vocab_size"),
            pad_id=special["pad"],
            bos_id=special["bos"],
            eos_id=special["eos"],
            pad_fixed=True,
        ),
        Learned(take("max_position_embeddings"), count="all"),
        repeat(block, take("num_hidden_layers")),
        source_norm=norm,
        dropout=block.dropout,
    )


def words_head(fields: Fields, act: str, norm: Norm) -> LMHead:
    """The head that fills in masked words."""
    tied = fields.take("tie_word_embeddings", True)
    return LMHead(tied, bias=True, transform=Transform(act, norm))


def bare_pool(keys: Collection[str], name: str) -> Pool | None:
    """The bare model may have a pooler or not: the weights tell. It has one by default."""
    return Pool() if not keys or name in keys else None


def write_stack(model: EncoderOnly) -> dict[str, Any]:
    """The inverse of `read_stack`."""
    expect(isinstance(model, EncoderOnly), "is not an encoder")
    stack, block = model.encoder, one(model.encoder.blocks, "shape")
    expect(isinstance(stack.position, Learned), "has no learned positions")
    expect(stack.source_norm is not None, "has no norm after the embedding")
    expect(stack.source.types > 0, "has no token types")
    assert isinstance(stack.position, Learned)
    out = {
        "vocab_size": stack.source.vocab,
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feed.width,
        "hidden_act": activation.WRITE[block.feed.act],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "max_position_embeddings": stack.position.offset + stack.position.length,
        "type_vocab_size": stack.source.types,
        "layer_norm_eps": block.norm.eps,
        **pieces.write_tokens(stack.source),
    }
    words = model.head.words if isinstance(model.head, PretrainHead) else model.head
    if isinstance(words, LMHead):
        expect(words.transform is not None, "has no dense layer before the output")
        out["tie_word_embeddings"] = words.tied
    return out


def classifier_dropout(model: EncoderOnly) -> dict[str, Any]:
    """What BERT and RoBERTa say where a head drops more or less than the layers do."""
    head = model.head
    if not isinstance(head, ClassHead) or head.dropout == model.encoder.dropout:
        return {}
    return {"classifier_dropout": head.dropout}


def embeddings(stack: Stack, base: str) -> list[Op]:
    """Words, positions, token types and their norm, by old names too."""
    where, position = f"{base}embeddings", stack.position
    assert isinstance(position, Learned)
    assert stack.source_norm is not None
    rows = position.offset + position.length
    return [
        Renamed(r"LayerNorm\.gamma$", "LayerNorm.weight"),
        Renamed(r"LayerNorm\.beta$", "LayerNorm.bias"),
        Same("encoder.embedding.weight", f"{where}.word_embeddings.weight"),
        Same("encoder.position.weight", f"{where}.position_embeddings.weight"),
        Same("encoder.types.weight", f"{where}.token_type_embeddings.weight"),
        *pieces.norm("encoder.source_norm", f"{where}.LayerNorm", stack.source_norm),
        Derived(f"{where}.position_ids", lambda: torch.arange(rows)[None]),
    ]


def layer(ours: str, theirs: str, block: Block, dim: int, names: Mapping[str, str]) -> list[Op]:
    """One layer; `names` has what theirs calls each part of ours."""
    qkv = tuple(f"{theirs}.{names[part]}" for part in ("query", "key", "value"))
    ops = pieces.fused(f"{ours}.attention.qkv", qkv, pieces.head_sizes(block.attention, dim))
    for part in ("attention.out", "attention_norm", "feed.up", "feed.down", "feed_norm"):
        ops += pieces.dense(f"{ours}.{part}", f"{theirs}.{names[part]}")
    return ops


BERT_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed.up": "intermediate.dense",
    "feed.down": "output.dense",
    "feed_norm": "output.LayerNorm",
}


def words(ours: str, head: LMHead, theirs: str, dense: str, norm: str, table: str) -> list[Op]:
    """The head over the vocabulary. Its bias has two names, and two tensors when it is untied, of
    which the one called decoder.bias is added."""
    ops = pieces.dense(f"{ours}.transform.dense", f"{theirs}.{dense}")
    ops += pieces.dense(f"{ours}.transform.norm", f"{theirs}.{norm}")
    if head.tied:
        return [
            *ops,
            Same(f"{ours}.bias", f"{theirs}.bias"),
            Alias(f"{theirs}.decoder.bias", f"{theirs}.bias"),
            Alias(f"{theirs}.decoder.weight", table),
        ]
    return [
        *ops,
        Same(f"{ours}.bias", f"{theirs}.decoder.bias"),
        Unused(f"{theirs}.bias", f"{theirs}.decoder.bias"),
        Same(f"{ours}.table.weight", f"{theirs}.decoder.weight"),
    ]


def no_pooler(base: str) -> Ignored:
    """Files that were made from a bigger model have one nevertheless."""
    return Ignored(re.escape(base) + r"pooler\..*", "its head reads no pooler")


def pooler(model: EncoderOnly, base: str, theirs: str) -> list[Op]:
    """The pooler's layer, or what to make of one that no head reads."""
    if model.pool is None:
        return [no_pooler(base)]
    return pieces.dense("pool.dense", f"{base}{theirs}")
