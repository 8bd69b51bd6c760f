"""ALBERT (Lan et al., 2019): BERT with narrow embeddings and layers that share their weights.

`num_hidden_layers` are dealt out to `num_hidden_groups` sets of weights, each of which is a run of
`inner_group_num` layers; published models have one set of one layer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import (
    ChoiceHead,
    ClassHead,
    EncoderOnly,
    Head,
    PretrainHead,
    Stack,
    heads_of,
    repeat,
)
from allformer.errors import CheckpointError
from allformer.families import encoder, encoder_map, layer_map
from allformer.families.bert import USUAL as BERT
from allformer.families.family import Family, architectures, expect
from allformer.families.fields import Fields
from allformer.families.heads import small_head, write_labels
from allformer.families.kinds import IDS, LAYERS, NUMBER, WHOLE, check_kind
from allformer.families.weights import WeightMap

ARCHITECTURES = architectures(
    "Albert", "Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification",
    "ForTokenClassification", "ForQuestionAnswering",
    "ForMultipleChoice",
)  # fmt: skip
USUAL = {
    **BERT, "vocab_size": 30_000, "hidden_size": 4096, "num_attention_heads": 64,
    "intermediate_size": 16_384, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "bos_token_id": 2, "eos_token_id": 3,
    "embedding_size": 128, "num_hidden_groups": 1, "inner_group_num": 1,
}  # fmt: skip


def _sizes(dim: int, layers: int, heads: int) -> dict[str, int]:
    sizes = {"hidden_size": dim, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": 4 * dim}


PRESETS = {
    "albert-base-v2": _sizes(768, 12, 12),
    "albert-large-v2": _sizes(1024, 24, 16),
    "albert-xlarge-v2": _sizes(2048, 24, 16),
    "albert-xxlarge-v2": _sizes(4096, 12, 64),
}


def share(layers: int, groups: int, inner: int) -> tuple[int, ...]:
    """The set of weights of each layer: `share(4, 2, 1)` is (0, 0, 1, 1).

    The last layer of each group is numbered first, so that the numbers tell how they are grouped:
    `share(2, 2, 2)` is (2, 0, 3, 1), and four layers of their own are (0, 1, 2, 3).
    """
    return tuple(
        (inner - 1 - j) * groups + int(i / (layers / groups))
        for i in range(layers)
        for j in range(inner)
    )


def grouping(stack: Stack) -> tuple[int, int, int]:
    """The inverse of `share`: layers, groups, inner."""
    order = stack.share or tuple(range(len(stack.blocks)))
    sets = len(set(order))
    groups = sets - order[0]
    inner = sets // groups
    return len(order) // inner, groups, inner


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    fields.inert(NUMBER, "classifier_dropout_prob", "down_scale_factor")
    fields.inert(WHOLE, "gap_size", "net_structure_type", "num_memory_blocks")
    fields.inert(IDS, "eos_token_ids")
    stack, kind = encoder.read_stack(fields), ARCHITECTURES[architecture]
    layers = len(stack.blocks)
    groups, inner = fields.take("num_hidden_groups"), fields.take("inner_group_num")
    if not 1 <= groups <= layers:
        raise CheckpointError(
            f"config.json has num_hidden_groups={groups} for num_hidden_layers={layers}; every "
            f"group must have a layer: try 1 … {layers}"
        )
    check_kind("num_hidden_layers × inner_group_num", layers * inner, LAYERS)
    stack = replace(
        stack,
        source=replace(stack.tokens, width=fields.take("embedding_size")),
        blocks=repeat(stack.blocks[0], layers * inner),
        share=None if (groups, inner) == (layers, 1) else share(layers, groups, inner),
    )
    head: Head | None
    if kind == "words":
        head = encoder.words_head(fields, stack)
    elif kind == "pretrain":
        pair = ClassHead(fields.labels, dropout=fields.take("classifier_dropout_prob", 0.1))
        head = PretrainHead(encoder.words_head(fields, stack), pair)
    else:
        head = small_head(fields, kind, "pool", drop="classifier_dropout_prob", usual=0.1)
    return encoder.with_head(stack, head, keys, NAMES.pooler)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = encoder.write_stack(model)
    expect(model.encoder.source.width is not None, "has no narrow embedding")
    layers, groups, inner = grouping(model.encoder)
    out |= {"embedding_size": model.encoder.source.width, "num_hidden_layers": layers}
    out |= {"num_hidden_groups": groups, "inner_group_num": inner}
    for head in (x for x in heads_of(model.head) if isinstance(x, ChoiceHead | ClassHead)):
        out |= {"classifier_dropout_prob": head.dropout, **write_labels(head)}
    return out


LAYER: layer_map.Names = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.out": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed.up": "ffn",
    "feed.down": "ffn_output",
    "feed_norm": "full_layer_layer_norm",
}
NAMES = encoder_map.Names(
    "pooler", "predictions", "dense", "LayerNorm",
    pair=("sop_classifier.classifier", "the sentence-order head"),
)  # fmt: skip


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of an ALBERT file."""
    stack, base = model.encoder, "" if model.head is None else "albert."
    ops = encoder_map.weights(model, base, NAMES)
    ops += layer_map.dense("encoder.source.widen", f"{base}encoder.embedding_hidden_mapping_in")
    _, groups, inner = grouping(stack)
    for i in range(groups * inner):
        group, place = i % groups, inner - 1 - i // groups
        theirs = f"{base}encoder.albert_layer_groups.{group}.albert_layers.{place}"
        ops += layer_map.layer(f"encoder.layers.{i}", theirs, stack.blocks[0], stack.dim, LAYER)
    return ops


FAMILY = Family("albert", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="albert.")
