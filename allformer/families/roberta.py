"""RoBERTa (Liu et al., 2019): BERT without the second sentence, trained longer.

Positions are counted over the ids that are not padding, from row pad + 1 of the table on; the
head for classes has a layer of its own and no pooler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from allformer.config import EncoderOnly, Learned, LMHead, SpanHead
from allformer.errors import CheckpointError
from allformer.families import encoder, pieces
from allformer.families.bert import USUAL as BERT
from allformer.families.family import Family, expect, head_kind
from allformer.families.fields import Fields
from allformer.families.weights import WeightMap

ARCHITECTURES = {
    "RobertaModel": "bare",
    "RobertaForMaskedLM": "words",
    "RobertaForSequenceClassification": "class",
    "RobertaForTokenClassification": "token",
    "RobertaForQuestionAnswering": "span",
}
USUAL = {**BERT, "vocab_size": 50_265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


def _bare(**sizes: Any) -> Callable[[], EncoderOnly]:
    return lambda: read(Fields({**_BASE, **sizes}, "roberta"), "RobertaModel", ())


PRESETS = {
    "roberta-base": _bare(),
    "roberta-large": _bare(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    stack, kind = encoder.read_stack(fields, USUAL), ARCHITECTURES[architecture]
    pad, position = stack.source.pad_id, stack.position
    if pad is None:
        raise CheckpointError(
            "config.json has no pad_token_id within the vocabulary; RoBERTa numbers its positions "
            "by it; give the id of the padding (published models have 1)"
        )
    assert isinstance(position, Learned)
    position = Learned(position.length - pad - 1, offset=pad + 1, count="ids")
    stack = replace(stack, position=position)
    if kind == "bare":
        return EncoderOnly(stack, pool=encoder.bare_pool(keys, "pooler.dense.weight"))
    if kind == "words":  # the exact gelu, whatever hidden_act says
        return EncoderOnly(stack, encoder.words_head(fields, "gelu", stack.blocks[0].norm))
    if kind == "span":
        return EncoderOnly(stack, SpanHead())
    dropout = fields.take("classifier_dropout", stack.dropout)
    if kind == "token":
        return EncoderOnly(stack, pieces.class_head(fields, "token", dropout=dropout))
    return EncoderOnly(stack, pieces.class_head(fields, "first", dense="tanh", dropout=dropout))


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = {**encoder.write_stack(model), **encoder.classifier_dropout(model)}
    position, pad = model.encoder.position, model.encoder.source.pad_id
    assert isinstance(position, Learned)
    counted = position.count == "ids" and pad is not None and position.offset == pad + 1
    expect(counted, "does not number its positions from the padding's id on")
    return out


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a RoBERTa file."""
    stack, kind = model.encoder, head_kind(model)
    base = "" if kind == "bare" else "roberta."
    ops = encoder.embeddings(stack, base)
    for i, block in enumerate(stack.blocks):
        ours, theirs = f"encoder.layers.{i}", f"{base}encoder.layer.{i}"
        ops += encoder.layer(ours, theirs, block, stack.dim, encoder.BERT_LAYER)
    ops += encoder.pooler(model, base, "pooler.dense")
    if isinstance(model.head, LMHead):
        table = f"{base}embeddings.word_embeddings.weight"
        ops += encoder.words("head", model.head, "lm_head", "dense", "layer_norm", table)
    elif kind == "class":
        ops += pieces.dense("head.dense", "classifier.dense")
        ops += pieces.dense("head.out", "classifier.out_proj")
    else:
        ops += pieces.small_head(kind)
    return ops


FAMILY = Family("roberta", PRESETS, ARCHITECTURES, read, write, weights, prefix="roberta.")
