"""CLIP's vision tower alone: patches behind [CLS], a norm before the layers, one behind [CLS].

The norm behind belongs to the vector: hidden states are given as the last layer leaves them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from allformer.config import EncoderOnly, LearnedPlane, Patches, Stack, VectorHead
from allformer.families import layer_map
from allformer.families.clip_layers import (
    LAYER,
    USUAL,
    kind,
    read_layers,
    read_norm,
    read_width,
    with_projection,
    write_layers,
    write_width,
)
from allformer.families.family import Family, expect, fit
from allformer.families.fields import Fields
from allformer.families.weights import Derived, Op, Reshaped, Same, WeightMap

ARCHITECTURES = {"CLIPVisionModel": "state", "CLIPVisionModelWithProjection": "vector"}
VISION = USUAL | {
    "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_channels": 3,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip
PROJECTION = "visual_projection.weight"
# What a file of both towers has besides this one.
OTHERS = r"text_model\..*|text_projection\.weight|logit_scale"


def read_stack(fields: Fields) -> Stack:
    """The tower that a vision_config means."""
    side = fields.take("image_size")
    source = Patches(
        fields.take("patch_size"), fields.take("num_channels"), (side, side), bias=False
    )
    return Stack(
        source=source,
        position=LearnedPlane(source.shape),
        source_norm=read_norm(fields),
        **read_layers(fields),
    )


def read_head(fields: Fields, width: int | None) -> VectorHead:
    """[CLS] through a norm of its own."""
    return VectorHead("first", width, read_norm(fields), "image_embeds")


def write_stack(stack: Stack) -> dict[str, Any]:
    """The inverse of `read_stack`."""
    source = fit(stack.source, Patches, "reads no images")
    expect(source.image[0] == source.image[1], "reads images that are not square")
    return {
        **write_layers(stack),
        "image_size": source.image[0],
        "patch_size": source.patch,
        "num_channels": source.channels,
    }


def stack_weights(stack: Stack, ours: str, theirs: str) -> list[Op]:
    """The tower's tensors: `stack_weights(stack, "encoder", "vision_model.")`."""
    source = fit(stack.source, Patches, "reads no images")
    where, rows, side = f"{theirs}embeddings", stack.trained or 0, source.patch
    kernel = (stack.dim, source.channels, side, side)
    return [
        Reshaped(f"{ours}.source.cls", f"{where}.class_embedding", (stack.dim,)),
        Reshaped(f"{ours}.source.project.weight", f"{where}.patch_embedding.weight", kernel),
        Same(f"{ours}.source.position.weight", f"{where}.position_embedding.weight"),
        Derived(f"{where}.position_ids", lambda: torch.arange(rows)[None]),
        *layer_map.dense(f"{ours}.source.norm", f"{theirs}pre_layrnorm"),  # spelt so
        *layer_map.layers(stack, ours, f"{theirs}encoder.layers", LAYER),
    ]


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    width = read_width(fields, ARCHITECTURES[architecture])
    return EncoderOnly(read_stack(fields), read_head(fields, width))


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack = fit(model, EncoderOnly, "is not an encoder").encoder
    return {**write_stack(stack), **write_width(model.head)}


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a vision tower's file; one of both towers will do."""
    projected = ARCHITECTURES[architecture] == "vector"
    base = "vision_model." if projected else ""
    ops = stack_weights(model.encoder, "encoder", base)
    ops += layer_map.dense("head.norm", f"{base}post_layernorm")
    return with_projection(ops, projected, PROJECTION, OTHERS)


FAMILY = Family(
    "clip_vision_model", ARCHITECTURES, VISION, {}, read, write, weights, prefix="vision_model.",
    kind=kind,
)  # fmt: skip
