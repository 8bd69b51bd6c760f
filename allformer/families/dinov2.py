"""DINOv2 (Oquab et al., 2023): a ViT that learnt without labels, the body that many build on.

Each sub-layer has a layer scale; the largest has SwiGLU. It reads images of any size, asked or not;
its classifier reads `[CLS]` and the mean of the patches side by side.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import (
    Block,
    EncoderOnly,
    Feed,
    LearnedPlane,
    Norm,
    Patches,
    Pool,
    Stack,
    repeat,
)  # fmt: skip
from allformer.families import activation, image_encoder, image_map, layer_map
from allformer.families.family import Family, architectures, expect, fit, named, one
from allformer.families.fields import Fields
from allformer.families.heads import class_head
from allformer.families.kinds import FLAG, LAYERS, LIST, NUMBER, TEXT, TEXTS
from allformer.families.weights import Joined, Op, Same, WeightMap

ARCHITECTURES = architectures("Dinov2", "Model", "ForImageClassification")
USUAL = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-6, "image_size": 224, "patch_size": 14, "num_channels": 3,
    "qkv_bias": True, "layerscale_value": 1.0, "use_swiglu_ffn": False, "use_mask_token": True,
    "drop_path_rate": 0.0,
}  # fmt: skip
_SIZES = "hidden_size num_hidden_layers num_attention_heads"
SIZES: dict[str, dict[str, Any]] = {  # trained with images of 518 pixels at last
    "small": {"image_size": 518, **named(_SIZES, 384, 12, 6)},
    "base": {"image_size": 518},
    "large": {"image_size": 518, **named(_SIZES, 1024, 24, 16)},
    "giant": {"image_size": 518, "use_swiglu_ffn": True, **named(_SIZES, 1536, 40, 24)},
}
PRESETS = {f"dinov2-{size}": fields for size, fields in SIZES.items()}
MOST_TIMES = 64  # of the width, that a feed-forward layer is asked for as wide as


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    source = image_encoder.read_patches(fields, mask=fields.flag("use_mask_token", True))
    return read_over(fields, ARCHITECTURES[architecture], source)


def read_over(fields: Fields, kind: str, source: Patches, antialias: bool = False) -> EncoderOnly:
    """The model over a source; `antialias` where its positions shrink."""
    fields.inert(FLAG, "apply_layernorm", "reshape_hidden_states")  # of a backbone, as all here
    fields.inert(TEXTS, "out_features", "stage_names")
    fields.inert(LIST, "out_indices")
    dim, norm = fields.take("hidden_size"), Norm("layer", float(fields.take("layer_norm_eps")))
    scale = float(fields.take("layerscale_value"))
    block = Block(
        image_encoder.read_attention(fields), read_feed(fields, dim), norm=norm, norm_at="pre",
        dropout=0.0, drop_path=float(fields.take("drop_path_rate", kind=NUMBER)), scale=scale,
    )  # fmt: skip
    stack = Stack(
        dim,
        source,
        LearnedPlane(source.shape, source.placed, "always", antialias),
        repeat(block, fields.take("num_hidden_layers", kind=LAYERS)),
        final_norm=norm,
        dropout=fields.take("hidden_dropout_prob"),
    )
    if kind == "class":
        return EncoderOnly(stack, class_head(fields, "first+patches"))
    return EncoderOnly(stack, pool=Pool("identity", dense=False))


def read_feed(fields: Fields, dim: int) -> Feed:
    """SwiGLU has a third matrix, and two thirds of the width instead."""
    width = dim * fields.take("mlp_ratio")
    if fields.flag("use_swiglu_ffn", False):
        fields.inert(TEXT, "hidden_act")
        return Feed(_narrowed(width), "silu", gated=True)
    return Feed(width, fields.choice("hidden_act", activation.READ))


def _narrowed(width: int) -> int:
    """Two thirds, in eights."""
    return (int(width * 2 / 3) + 7) // 8 * 8


def write_feed(feed: Feed, dim: int) -> dict[str, Any]:
    """The inverse of `read_feed`."""
    wide = {times: times * dim for times in range(1, MOST_TIMES + 1)}
    if feed.gated:
        wide = {times: _narrowed(width) for times, width in wide.items()}
    fitting = [times for times, width in wide.items() if width == feed.width]
    expect(bool(fitting), f"has a feed-forward width of {feed.width}, no multiple of {dim}")
    expect(not feed.gated or feed.act == "silu", "is gated by another activation than SiLU")
    return {"mlp_ratio": fitting[0], "use_swiglu_ffn": feed.gated}


def write_over(model: EncoderOnly) -> dict[str, Any]:
    """What both kinds of DINOv2 say alike."""
    out = image_encoder.write_common(model)
    stack = model.encoder
    block: Block = one(stack.blocks, "shape")
    expect(block.scale is not None, "has no layer scale")
    if block.feed.gated:
        del out["hidden_act"]
    return {
        **out,
        **write_feed(block.feed, stack.dim),
        "layerscale_value": block.scale,
        "drop_path_rate": block.drop_path,
        "hidden_dropout_prob": stack.dropout,
    }


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = write_over(model)
    source = fit(model.encoder.source, Patches, "reads no image")
    expect(not source.registers, "has registers")
    return {**out, "use_mask_token": source.mask}


_LAYER: layer_map.Names = {
    "attention.qkv": (
        "attention.attention.query", "attention.attention.key", "attention.attention.value",
    ),
    "attention.out": "attention.output.dense",
    "attention_norm": "norm1",
    "feed_norm": "norm2",
}  # fmt: skip
LAYER: layer_map.Names = {**_LAYER, "feed.up": "mlp.fc1", "feed.down": "mlp.fc2"}
# Gate and up are one matrix in the files: see `_gated`.
GATED: layer_map.Names = {
    **_LAYER, "feed.gate": "mlp.gate_proj", "feed.up": "mlp.up_proj",
    "feed.down": "mlp.weights_out",
}  # fmt: skip


def _gated(where: str, width: int) -> list[Op]:
    """The matrix and the bias of gate and up, in this order."""
    return [
        Joined(
            f"{where}.mlp.weights_in.{kind}",
            (f"{where}.mlp.gate_proj.{kind}", f"{where}.mlp.up_proj.{kind}"),
            (width, width),
        )
        for kind in ("weight", "bias")
    ]


def weights_over(model: EncoderOnly, name: str) -> WeightMap:
    """The map of a file whose body has this name within a model with a head."""
    base, stack = "" if model.head is None else f"{name}.", model.encoder
    feed = stack.blocks[0].feed
    ops = image_map.weights(model, base, mask=(1,))
    theirs = f"{base}encoder.layer"
    ops += layer_map.layers(stack, "encoder", theirs, GATED if feed.gated else LAYER)
    for i in range(len(stack.blocks)):
        for number, part in enumerate(("attention", "feed"), 1):
            ours = f"encoder.layers.{i}.{part}_scale.weight"
            ops.append(Same(ours, f"{theirs}.{i}.layer_scale{number}.lambda1"))
        if feed.gated:
            ops += _gated(f"{theirs}.{i}", feed.width)
    return ops


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a DINOv2 file."""
    return weights_over(model, "dinov2")


FAMILY = Family(
    "dinov2", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="dinov2.",
    in_memory=image_map.ATTENTION, drop_path=True,
)  # fmt: skip
