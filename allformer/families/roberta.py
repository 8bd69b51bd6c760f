"""RoBERTa (Liu et al., 2019): BERT without the second sentence, trained longer.

Positions are counted over the ids that are not padding, from row pad + 1 of the table on; the
head for classes has a layer of its own and no pooler.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import EncoderOnly, Learned, Stack
from allformer.errors import CheckpointError
from allformer.families import bert, encoder, encoder_map, layer_map
from allformer.families.family import Family, architectures, expect
from allformer.families.fields import Fields
from allformer.families.heads import small_head
from allformer.families.weights import WeightMap

ARCHITECTURES = architectures(
    "Roberta", "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)  # fmt: skip
_IDS = {"vocab_size": 50_265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
USUAL = {**bert.USUAL, **_IDS}
_BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
PRESETS = {"roberta-base": _BASE, "roberta-large": {**_BASE, **bert.LARGE}}
NAMES = encoder_map.Names("pooler.dense", "lm_head", "dense", "layer_norm")


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    stack, kind = encoder.read_stack(fields), ARCHITECTURES[architecture]
    stack = numbered_from_padding(stack, "RoBERTa")
    if kind == "words":  # the exact gelu, whatever hidden_act says
        return EncoderOnly(stack, encoder.words_head(fields, stack, "gelu"))
    # Of a choice, which classifier_dropout does not reach, the layers' dropout is the head's too.
    drop = "hidden_dropout_prob" if kind == "choice" else "classifier_dropout"
    head = small_head(fields, kind, "first", dense="tanh", drop=drop, usual=stack.dropout)
    return encoder.with_head(stack, head, keys, NAMES.pooler)


def numbered_from_padding(stack: Stack, name: str) -> Stack:
    """Positions are those of the ids that are not padding, from row pad + 1 of the table on."""
    pad, position = stack.source.pad_id, stack.position
    if pad is None:
        raise CheckpointError(
            f"config.json has no pad_token_id within the vocabulary; {name} numbers its positions "
            f"by it; give the id of the padding (published models have 1)"
        )
    assert isinstance(position, Learned)
    position = Learned(position.length - pad - 1, offset=pad + 1, count="ids")
    return replace(stack, position=position)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = {**encoder.write_stack(model), **encoder.classifier_dropout(model)}
    expect_numbered(model.encoder)
    return out


def expect_numbered(stack: Stack) -> None:
    """In a writer: positions as `numbered_from_padding` has them."""
    position, pad = stack.position, stack.source.pad_id
    assert isinstance(position, Learned)
    counted = position.count == "ids" and pad is not None and position.offset == pad + 1
    expect(counted, "does not number its positions from the padding's id on")


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a RoBERTa file."""
    base = "" if model.head is None else "roberta."
    layers = layer_map.layers(model.encoder, "encoder", f"{base}encoder.layer", bert.LAYER)
    return encoder_map.weights(model, base, NAMES) + layers


FAMILY = Family("roberta", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="roberta.")
