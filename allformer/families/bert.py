"""BERT (Devlin et al., 2018): an encoder with token types, that fills in masked words.

Published files call the norms' parameters gamma and beta, and hold a pooler and a next-sentence
head beside the head that config.json names. `BertLMHeadModel` is one that looks back alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import ClassHead, DecoderOnly, EncoderOnly, Head, Model, PretrainHead
from allformer.families import encoder, encoder_map, layer_map
from allformer.families.family import Family, architectures
from allformer.families.fields import Fields
from allformer.families.heads import small_head
from allformer.families.kinds import TEXT, WHOLE
from allformer.families.weights import WeightMap

CAUSAL = "BertLMHeadModel"
ARCHITECTURES = {
    **architectures(
        "Bert", "Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification",
        "ForNextSentencePrediction", "ForTokenClassification", "ForQuestionAnswering",
        "ForMultipleChoice",
    ),
    CAUSAL: "causal",
}  # fmt: skip
USUAL = {
    "vocab_size": 30_522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
LARGE = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "bert-base": {},
    "bert-large": LARGE,
    "bert-base-cased": {"vocab_size": 28_996},
    "bert-large-cased": {"vocab_size": 28_996, **LARGE},
    "bert-base-chinese": {"vocab_size": 21_128},
    "bert-base-multilingual": {"vocab_size": 119_547},
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly | DecoderOnly:
    """config.json → the tree."""
    fields.inert(TEXT, "directionality", "pooler_type")
    fields.inert(WHOLE, "pooler_fc_size", "pooler_num_attention_heads")
    fields.inert(WHOLE, "pooler_num_fc_layers", "pooler_size_per_head")
    stack, kind = encoder.read_stack(fields), ARCHITECTURES[architecture]
    if kind == "causal":
        return encoder.decoder(fields, stack, architecture)
    head: Head | None
    if kind == "words":
        head = encoder.words_head(fields, stack)
    elif kind == "pretrain":
        head = PretrainHead(encoder.words_head(fields, stack), _pair(fields))
    elif architecture == "BertForNextSentencePrediction":
        head = _pair(fields)
    else:
        head = small_head(fields, kind, "pool", usual=stack.dropout)
    return encoder.with_head(stack, head, keys, NAMES.pooler)


def _pair(fields: Fields) -> ClassHead:
    """Whether the second sentence follows (0) or not (1): two classes, whatever num_labels says."""
    labels = fields.labels
    return ClassHead(labels if len(labels) == 2 else ("LABEL_0", "LABEL_1"))


def write(model: Model) -> dict[str, Any]:
    """The tree → config.json."""
    return encoder.write_either(model)


LAYER: layer_map.Names = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed.up": "intermediate.dense",
    "feed.down": "output.dense",
    "feed_norm": "output.LayerNorm",
}
NAMES = encoder_map.Names(
    "pooler.dense", "cls.predictions", "transform.dense", "transform.LayerNorm",
    pair=("cls.seq_relationship", "the next-sentence head"),
)  # fmt: skip
NEXT = replace(NAMES, classes="cls.seq_relationship")


def weights(model: EncoderOnly | DecoderOnly, architecture: str) -> WeightMap:
    """The map of a BERT file."""
    base = "" if model.head is None else "bert."
    names = NEXT if architecture == "BertForNextSentencePrediction" else NAMES
    ours, stack = next(iter(model.stacks.items()))
    layers = layer_map.layers(stack, ours, f"{base}encoder.layer", LAYER)
    return encoder_map.weights(model, base, names) + layers


FAMILY = Family(
    "bert", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="bert.", kind=encoder.kind
)
