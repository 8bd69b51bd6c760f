"""CLIP's text tower alone (Radford et al., 2021): causal, pre-norm, read at the end of the text.

Where the text ends is told in two dialects: configs whose `eos_token_id` is 2, which is no end
token of the vocabulary, mean the token with the largest id; all others the first end token.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from allformer.config import DecoderOnly, Learned, Stack, VectorHead
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
from allformer.families.family import Family, fit
from allformer.families.fields import Fields
from allformer.families.tokens import read_tokens, write_tokens
from allformer.families.weights import Derived, Op, Same, WeightMap

OLD_END = 2  # the id that means: look for the largest
ARCHITECTURES = {"CLIPTextModel": "state", "CLIPTextModelWithProjection": "vector"}
TEXT = USUAL | {
    "vocab_size": 49_408, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
    "max_position_embeddings": 77, "pad_token_id": 1, "bos_token_id": 49_406,
    "eos_token_id": 49_407,
}  # fmt: skip
PROJECTION = "text_projection.weight"
# What a file of both towers has besides this one.
OTHERS = r"vision_model\..*|visual_projection\.weight|logit_scale"


def read_stack(fields: Fields) -> Stack:
    """The tower that a text_config means."""
    return Stack(
        source=read_tokens(fields),
        position=Learned(fields.take("max_position_embeddings"), count="all"),
        causal=True,
        final_norm=read_norm(fields),
        **read_layers(fields),
    )


def read_head(stack: Stack, width: int | None) -> VectorHead:
    """Where its vector is read, by the dialect of its end token."""
    at = "largest" if stack.source.eos_id == OLD_END else "eos"
    return VectorHead(at, width, output="text_embeds")  # type: ignore[arg-type]


def write_stack(stack: Stack) -> dict[str, Any]:
    """The inverse of `read_stack`."""
    position = fit(stack.position, Learned, "has no learned positions")
    return {
        **write_tokens(stack.source),
        **write_layers(stack),
        "max_position_embeddings": position.length,
    }


def stack_weights(stack: Stack, ours: str, theirs: str) -> list[Op]:
    """The tower's tensors: `stack_weights(stack, "decoder", "text_model.")`."""
    rows = stack.longest or 0
    return [
        Same(f"{ours}.source.embedding.weight", f"{theirs}embeddings.token_embedding.weight"),
        Same(f"{ours}.source.position.weight", f"{theirs}embeddings.position_embedding.weight"),
        *layer_map.layers(stack, ours, f"{theirs}encoder.layers", LAYER),
        *layer_map.dense(f"{ours}.final_norm", f"{theirs}final_layer_norm"),
        Derived(f"{theirs}embeddings.position_ids", lambda: torch.arange(rows)[None]),
    ]


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    stack, width = read_stack(fields), read_width(fields, ARCHITECTURES[architecture])
    return DecoderOnly(stack, read_head(stack, width))


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack = fit(model, DecoderOnly, "is not a causal tower").decoder
    return {**write_stack(stack), **write_width(model.head)}


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of a text tower's file; one of both towers will do."""
    projected = ARCHITECTURES[architecture] == "vector"
    ops = stack_weights(model.decoder, "decoder", "text_model." if projected else "")
    return with_projection(ops, projected, PROJECTION, OTHERS)


FAMILY = Family(
    "clip_text_model", ARCHITECTURES, TEXT, {}, read, write, weights, prefix="text_model.",
    kind=kind,
)  # fmt: skip
