"""EoMT (Kerssies et al., 2025): a plain DINOv2 that segments, in whose last layers queries join.

transformers' `layers` are one list; here the last `num_blocks` of them, the norm after them and all
that follows are the head.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from allformer.config import (
    Attention,
    Block,
    EncoderOnly,
    LearnedPlane,
    MaskLoss,
    Norm,
    Patches,
    QueryMasks,
    Stack,
    repeat,
)
from allformer.errors import CheckpointError
from allformer.families import activation, dinov2, image_encoder, layer_map
from allformer.families.family import Family, expect, fit, named, one
from allformer.families.fields import Fields
from allformer.families.kinds import LAYERS, NUMBER
from allformer.families.weights import Derived, Op, Reshaped, Same, WeightMap

NAME = "EomtForUniversalSegmentation"
ARCHITECTURES = {NAME: "masks"}
USUAL = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "mlp_ratio": 4,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_dropout": 0.0,
    "layer_norm_eps": 1e-6, "image_size": 640, "patch_size": 16, "num_channels": 3,
    "layerscale_value": 1.0, "use_swiglu_ffn": False, "num_upscale_blocks": 2, "num_blocks": 4,
    "no_object_weight": 0.1, "class_weight": 2.0, "mask_weight": 5.0, "dice_weight": 5.0,
    "train_num_points": 12544, "oversample_ratio": 3.0, "importance_sample_ratio": 0.75,
    "num_queries": 200, "num_register_tokens": 4, "drop_path_rate": 0.0,
}  # fmt: skip
_SIZES = "hidden_size num_hidden_layers num_attention_heads num_blocks"
PRESETS: dict[str, dict[str, Any]] = {
    "eomt-small": named(_SIZES, 384, 12, 6, 3),
    "eomt-base": named(_SIZES, 768, 12, 12, 3),
    "eomt-large": {},
}
# What config.json calls the numbers of the loss.
LOSS = {
    "classes": "class_weight", "mask": "mask_weight", "dice": "dice_weight",
    "nothing": "no_object_weight", "points": "train_num_points", "oversample": "oversample_ratio",
    "importance": "importance_sample_ratio",
}  # fmt: skip
EPS = 1e-6  # of the norms between upscaled planes, which no file says


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    dim, norm = fields.take("hidden_size"), Norm("layer", float(fields.take("layer_norm_eps")))
    count = fields.take("num_register_tokens")
    source = image_encoder.read_patches(fields, registers=count)
    heads, drop = fields.take("num_attention_heads"), fields.take("attention_dropout")
    block = Block(
        Attention(heads, bias=True, dropout=drop), dinov2.read_feed(fields, dim), norm=norm,
        norm_at="pre", dropout=0.0, drop_path=float(fields.take("drop_path_rate", kind=NUMBER)),
        scale=float(fields.take("layerscale_value")),
    )  # fmt: skip
    depth, last = fields.take("num_hidden_layers", kind=LAYERS), fields.take("num_blocks")
    if not 0 < last < depth:
        raise CheckpointError(
            f"config.json has num_blocks={last} of num_hidden_layers={depth}; queries join after "
            f"the first layer at the earliest and before the last: give 1 to {depth - 1}"
        )
    stack = Stack(
        dim,
        source,
        LearnedPlane(source.shape, 0),
        repeat(block, depth - last),
        dropout=fields.take("hidden_dropout_prob"),
    )
    head = QueryMasks(
        fields.labels, repeat(block, last), fields.take("num_queries"), norm,
        fields.take("num_upscale_blocks"), fields.choice("hidden_act", activation.READ),
        MaskLoss(**{ours: fields.take(theirs) for ours, theirs in LOSS.items()}), EPS,
    )  # fmt: skip
    return EncoderOnly(stack, head)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack = fit(model, EncoderOnly, "is not an encoder").encoder
    head = fit(model.head, QueryMasks, "has no queries that join its last layers")
    source = fit(stack.source, Patches, "reads no image")
    position = fit(stack.position, LearnedPlane, "has no learned positions of a plane")
    expect(stack.final_norm is None, "has a norm before its queries join")
    expect(position.front == 0, "has a position of [CLS]")
    expect(source.cls and not source.distilled and not source.mask, "has other tokens")
    expect(head.upscale_eps == EPS, "has another small number in its upscaling")
    block: Block = one((*stack.blocks, *head.blocks), "shape")
    expect(block.scale is not None, "has no layer scale")
    expect(block.norm == head.norm, "has another norm at its end")
    gated = block.feed.gated
    expect(gated or block.feed.act == head.act, "has another activation in its head")
    return {
        **image_encoder.write_patches(source),
        **dinov2.write_feed(block.feed, stack.dim),
        **{theirs: getattr(head.loss, ours) for ours, theirs in LOSS.items()},
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks) + len(head.blocks),
        "num_blocks": len(head.blocks),
        "num_attention_heads": block.attention.heads,
        "hidden_act": activation.WRITE[head.act],
        "hidden_dropout_prob": stack.dropout,
        "attention_dropout": block.attention.dropout,
        "layer_norm_eps": block.norm.eps,
        "layerscale_value": block.scale,
        "drop_path_rate": block.drop_path,
        "num_register_tokens": source.registers,
        "num_queries": head.queries,
        "num_upscale_blocks": head.upscale,
    }


LAYER: layer_map.Names = {
    "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.out": "attention.out_proj",
    "attention_norm": "norm1",
    "feed_norm": "norm2",
    "feed.up": "mlp.fc1",
    "feed.down": "mlp.fc2",
}
GATED: layer_map.Names = {
    **LAYER, "feed.gate": "mlp.gate_proj", "feed.up": "mlp.up_proj", "feed.down": "mlp.down_proj",
}  # fmt: skip


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of an EoMT file."""
    head, dim = fit(model.head, QueryMasks, "has no queries"), model.encoder.dim
    ops = _embeddings(model)
    first = len(model.encoder.blocks)
    for i in range(first):
        ops += _layer(f"encoder.layers.{i}", i, model.encoder.blocks[i], dim)
    for i, block in enumerate(head.blocks):
        ops += _layer(f"head.layers.blocks.{i}", first + i, block, dim)
    ops += layer_map.dense("head.norm", "layernorm")
    ops += layer_map.dense("head.classes", "class_predictor")
    for i in range(3):
        ops += layer_map.dense(f"head.mask.{i}", f"mask_head.fc{i + 1}")
    for i in range(head.upscale):
        ours, theirs = f"head.upscale.{i}", f"upscale_block.block.{i}"
        ops += [
            Same(f"{ours}.up", f"{theirs}.conv1.weight"),
            Same(f"{ours}.up_bias", f"{theirs}.conv1.bias"),
            Same(f"{ours}.within", f"{theirs}.conv2.weight"),
            *layer_map.dense(f"{ours}.norm", f"{theirs}.layernorm2d"),
        ]
    return [
        *ops,
        Same("head.queries", "query.weight"),
        Same("head.masking", "attn_mask_probs", missing=1.0),
        Derived("criterion.empty_weight", lambda: _class_weights(head), write=True),
    ]


def _embeddings(model: EncoderOnly) -> list[Op]:
    stack, ours, where = model.encoder, "encoder.source", "embeddings"
    source = stack.source
    assert isinstance(source, Patches)
    kernel = (stack.dim, source.channels, source.patch, source.patch)
    project = f"{where}.patch_embeddings.projection"
    ops: list[Op] = [
        Reshaped(f"{ours}.project.weight", f"{project}.weight", kernel),
        Same(f"{ours}.project.bias", f"{project}.bias"),
        Same(f"{ours}.position.weight", f"{where}.position_embeddings.weight"),
        Reshaped(f"{ours}.cls", f"{where}.cls_token", (1, 1, stack.dim)),
    ]
    shape = (1, source.registers, stack.dim)
    return [*ops, Reshaped(f"{ours}.registers", f"{where}.register_tokens", shape)]


def _layer(ours: str, number: int, block: Block, dim: int) -> list[Op]:
    theirs = f"layers.{number}"
    ops = layer_map.layer(ours, theirs, block, dim, GATED if block.feed.gated else LAYER)
    for i, part in enumerate(("attention", "feed"), 1):
        ops.append(Same(f"{ours}.{part}_scale.weight", f"{theirs}.layer_scale{i}.lambda1"))
    return ops


def _class_weights(head: QueryMasks) -> torch.Tensor:
    """What the loss weighs each class by, and the last, nothing."""
    return torch.tensor([1.0] * len(head.labels) + [head.loss.nothing])


def _kind(model: EncoderOnly) -> str:
    return "masks" if isinstance(model.head, QueryMasks) else type(model.head).__name__


FAMILY = Family(
    "eomt", ARCHITECTURES, USUAL, PRESETS, read, write, weights, kind=_kind, drop_path=True
)
