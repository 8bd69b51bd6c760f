"""SigLIP's towers alone (Zhai et al., 2023): neither is causal, and neither has [CLS].

A text is read at its last column, padding or not: rows are filled up to the longest text that
there can be. An image is read by a probe that looks at all patches.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import torch

from allformer.config import (
    EncoderOnly,
    Feed,
    Learned,
    LearnedPlane,
    Patches,
    Probe,
    Stack,
    VectorHead,
)
from allformer.families import layer_map
from allformer.families.clip_layers import LAYER, read_layers, read_norm, write_layers
from allformer.families.family import Family, expect, fit, head_kind
from allformer.families.fields import Fields
from allformer.families.kinds import SIZE
from allformer.families.tokens import read_tokens, write_tokens
from allformer.families.weights import Derived, Ignored, Op, Reshaped, Same, Shape, WeightMap

USUAL = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "attention_dropout": 0.0,
}  # fmt: skip
TEXT = USUAL | {
    "vocab_size": 32_000, "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 49_406,
    "eos_token_id": 49_407,
}  # fmt: skip
VISION = USUAL | {"num_channels": 3, "image_size": 224, "patch_size": 16}
WHY = "of the whole SigLIP"


class Tower(NamedTuple):
    """A stack and what reads it."""

    stack: Stack
    head: VectorHead


def read_text(fields: Fields, output: str) -> Tower:
    """The tower that a text_config means."""
    norm = read_norm(fields)
    position = Learned(fields.take("max_position_embeddings"), count="all")
    layers = read_layers(fields)
    stack = Stack(source=read_tokens(fields), position=position, final_norm=norm, **layers)
    width = fields.take("projection_size", stack.dim, kind=SIZE)
    return Tower(stack, VectorHead("last", width, output=output, bias=True))


def read_vision(fields: Fields, output: str) -> Tower:
    """The tower that a vision_config means."""
    side, norm = fields.take("image_size"), read_norm(fields)
    source = Patches(
        fields.take("patch_size"), fields.take("num_channels"), (side, side), cls=False
    )
    position, layers = LearnedPlane(source.shape, front=0), read_layers(fields)
    stack = Stack(source=source, position=position, final_norm=norm, **layers)
    block = stack.blocks[0]
    probe = Probe(block.attention.heads, Feed(block.feed.width, block.feed.act), norm)
    return Tower(stack, VectorHead(probe, output=output))


def write_text(tower: Tower) -> dict[str, Any]:
    """The inverse of `read_text`."""
    position = fit(tower.stack.position, Learned, "has no learned positions")
    own = {"max_position_embeddings": position.length, "projection_size": tower.head.width}
    return {**write_tokens(tower.stack.source), **_layers(tower.stack), **own}


def write_vision(stack: Stack) -> dict[str, Any]:
    """The inverse of `read_vision`."""
    source = fit(stack.source, Patches, "reads no images")
    expect(source.image[0] == source.image[1], "reads images that are not square")
    own = {"image_size": source.image[0], "patch_size": source.patch}
    return {**_layers(stack), **own, "num_channels": source.channels}


def _layers(stack: Stack) -> dict[str, Any]:
    told = write_layers(stack)
    usual = told["hidden_act"] == "gelu_new"  # one formula of several names
    return told | ({"hidden_act": USUAL["hidden_act"]} if usual else {})


def text_weights(stack: Stack, ours: str, head: str, theirs: str) -> list[Op]:
    """The text tower's tensors, and its head's."""
    rows = stack.longest or 0
    return [
        Same(f"{ours}.source.embedding.weight", f"{theirs}embeddings.token_embedding.weight"),
        Same(f"{ours}.source.position.weight", f"{theirs}embeddings.position_embedding.weight"),
        Derived(f"{theirs}embeddings.position_ids", lambda: torch.arange(rows)[None]),
        *layer_map.layers(stack, ours, f"{theirs}encoder.layers", LAYER),
        *layer_map.dense(f"{ours}.final_norm", f"{theirs}final_layer_norm"),
        *layer_map.dense(f"{head}.out", f"{theirs}head"),
    ]


def vision_weights(stack: Stack, ours: str, theirs: str) -> list[Op]:
    """The vision tower's tensors, without its probe's."""
    source = fit(stack.source, Patches, "reads no images")
    where, rows, side = f"{theirs}embeddings", stack.trained or 0, source.patch
    kernel = (stack.dim, source.channels, side, side)
    return [
        Reshaped(f"{ours}.source.project.weight", f"{where}.patch_embedding.weight", kernel),
        Same(f"{ours}.source.project.bias", f"{where}.patch_embedding.bias"),
        Same(f"{ours}.source.position.weight", f"{where}.position_embedding.weight"),
        Derived(f"{where}.position_ids", lambda: torch.arange(rows)[None]),
        *layer_map.layers(stack, ours, f"{theirs}encoder.layers", LAYER),
        *layer_map.dense(f"{ours}.final_norm", f"{theirs}post_layernorm"),
    ]


def probe_weights(stack: Stack, ours: str, theirs: str) -> list[Op]:
    """Those of the probe: `probe_weights(stack, "head.probe", "vision_model.head")`."""
    return [
        Reshaped(f"{ours}.query", f"{theirs}.probe", (1, 1, stack.dim)),
        Same(f"{ours}.qkv.weight", f"{theirs}.attention.in_proj_weight"),
        Same(f"{ours}.qkv.bias", f"{theirs}.attention.in_proj_bias"),
        *layer_map.dense(f"{ours}.out", f"{theirs}.attention.out_proj"),
        *layer_map.dense(f"{ours}.norm", f"{theirs}.layernorm"),
        *layer_map.dense(f"{ours}.feed.up", f"{theirs}.mlp.fc1"),
        *layer_map.dense(f"{ours}.feed.down", f"{theirs}.mlp.fc2"),
    ]


def probe_shapes(stack: Stack) -> dict[str, Shape]:
    """Of the probe's tensors, for a model that holds them and reads none."""
    d, f = stack.dim, stack.blocks[0].feed.width
    return {
        "probe": (1, 1, d), "attention.in_proj_weight": (3 * d, d),
        "attention.in_proj_bias": (3 * d,), "attention.out_proj.weight": (d, d),
        "attention.out_proj.bias": (d,), "layernorm.weight": (d,), "layernorm.bias": (d,),
        "mlp.fc1.weight": (f, d), "mlp.fc1.bias": (f,), "mlp.fc2.weight": (d, f),
        "mlp.fc2.bias": (d,),
    }  # fmt: skip


def _read(text: bool, fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    return EncoderOnly(*read_text(fields, "pooler_output")) if text else read_sight(fields)


def read_sight(fields: Fields) -> EncoderOnly:
    """The vision tower alone: with its probe, or its patches as they are."""
    stack, head = read_vision(fields, "pooler_output")
    return EncoderOnly(stack, head if fields.flag("vision_use_head", True) else None)


def _write(text: bool, model: EncoderOnly) -> dict[str, Any]:
    stack = fit(model, EncoderOnly, "is not an encoder").encoder
    if text:
        return write_text(Tower(stack, fit(model.head, VectorHead, "gives no vector")))
    return write_vision(stack) | ({"vision_use_head": False} if model.head is None else {})


def weights(text: bool, model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a tower's file; one of both towers will do."""
    stack, others = model.encoder, r"logit_scale|logit_bias"
    if text:
        ops = text_weights(stack, "encoder", "head", "")
        return [*ops, Ignored(rf"vision_model\..*|{others}", WHY)]
    ops = vision_weights(stack, "encoder", "")
    if model.head is None:  # a file of both towers has a probe nevertheless
        return [*ops, Ignored(rf"head\..*|text_model\..*|{others}", WHY)]
    ops += probe_weights(stack, "head.probe", "head")
    return [*ops, Ignored(rf"text_model\..*|{others}", WHY)]


def _kind(model: Any) -> str:
    """One class of transformers, with its probe and without."""
    return "VectorHead" if model.head is None else head_kind(model)


def _family(name: str, usual: dict[str, Any]) -> Family:
    text = name == "Text"
    return Family(
        f"siglip_{name.lower()}_model", {f"Siglip{name}Model": "VectorHead"}, usual, {},
        partial(_read, text), partial(_write, text), partial(weights, text),
        prefix=f"{name.lower()}_model.", kind=head_kind if text else _kind,
    )  # fmt: skip


TEXT_FAMILY, VISION_FAMILY = _family("Text", TEXT), _family("Vision", VISION)
