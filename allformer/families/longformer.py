"""Longformer (Beltagy et al., 2020): RoBERTa that looks through windows, and global tokens.

A layer has three projections more, for the global tokens. Its head for answers marks the question
by the separators of the text, its head for a choice what follows it; `sep_token_id` must be what
ends texts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import EncoderOnly, Head
from allformer.errors import CheckpointError
from allformer.families import bert, encoder, encoder_map, layer_map, roberta
from allformer.families.family import Family, architectures, fit
from allformer.families.fields import Fields
from allformer.families.heads import small_head
from allformer.families.kinds import FLAG, TEXT
from allformer.families.weights import WeightMap
from allformer.families.windows import read_windows, without_windows

ARCHITECTURES = architectures(
    "Longformer", "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)  # fmt: skip
_IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
USUAL = {**bert.USUAL, **_IDS, "attention_window": 512}
_BASE = {
    "vocab_size": 50_265, "max_position_embeddings": 4098, "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}  # fmt: skip
PRESETS = {"longformer-base-4096": _BASE, "longformer-large-4096": {**_BASE, **bert.LARGE}}
_PROJECTIONS = ("query", "key", "value", "query_global", "key_global", "value_global")
LAYER = {**bert.LAYER, "attention.qkv": tuple(f"attention.self.{x}" for x in _PROJECTIONS)}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    fields.inert(TEXT, "attention_mode")  # of the authors' own code
    fields.inert(FLAG, "ignore_attention_mask", "onnx_export")
    stack, kind = encoder.read_stack(fields), ARCHITECTURES[architecture]
    stack = read_windows(fields, roberta.numbered_from_padding(stack, "Longformer"))
    head: Head | None
    if kind == "words":  # the exact gelu, whatever hidden_act says
        head = encoder.words_head(fields, stack, "gelu")
    else:
        drop, usual = "hidden_dropout_prob", stack.dropout
        head = small_head(fields, kind, "first", dense="tanh", drop=drop, usual=usual)
    end, separator = stack.source.eos_id, fields.token("sep_token_id", stack.source.vocab)
    if kind in ("span", "choice") and separator != end:
        raise CheckpointError(
            f"config.json has sep_token_id={separator}, which is not eos_token_id={end}; a "
            f"Longformer for answers or choices finds the question by it; set both to the "
            f"separator's id"
        )
    return encoder.with_head(stack, head, keys, roberta.NAMES.pooler)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack, windows = without_windows(fit(model, EncoderOnly, "is not an encoder").encoder)
    out = encoder.write_stack(replace(model, encoder=stack))
    roberta.expect_numbered(stack)
    return {**out, **windows, "sep_token_id": stack.source.eos_id}


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a Longformer file."""
    base = "" if model.head is None else "longformer."
    layers = layer_map.layers(model.encoder, "encoder", f"{base}encoder.layer", LAYER)
    return encoder_map.weights(model, base, roberta.NAMES) + layers


FAMILY = Family(
    "longformer", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="longformer."
)
