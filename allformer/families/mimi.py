"""Mimi's config.json and weights (Défossez et al., 2024): the codec itself stands in
`allformer.codecs.sound`, with its preset."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from allformer.codecs.sound.mimi_config import CodecFrames, Mimi
from allformer.codecs.sound.seanet_config import Seanet
from allformer.config import Attention, Block, Feed, Norm, Rotary, Stack, Window, repeat
from allformer.errors import CheckpointError
from allformer.families import activation, layer_map, rope, seanet_fields, seanet_map
from allformer.families.family import Family, architectures, expect, fit, one
from allformer.families.fields import Fields
from allformer.families.kinds import FLAG, LAYERS, NUMBER, SIZE
from allformer.families.weights import Op, Reshaped, Same, WeightMap

ARCHITECTURES = architectures("Mimi", "Model")
USUAL = {
    "sampling_rate": 24_000, "audio_channels": 1, "hidden_size": 512, "num_filters": 64,
    "num_residual_layers": 1, "kernel_size": 7, "last_kernel_size": 3, "residual_kernel_size": 3,
    "dilation_growth_rate": 2, "use_causal_conv": True, "pad_mode": "constant", "compress": 2,
    "trim_right_ratio": 1.0, "codebook_size": 2048, "codebook_dim": 256, "num_quantizers": 32,
    "use_conv_shortcut": False, "vector_quantization_hidden_dimension": 256,
    "num_semantic_quantizers": 1, "upsample_groups": 512, "num_hidden_layers": 8,
    "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8,
    "hidden_act": "gelu", "norm_eps": 1e-5, "sliding_window": 250, "attention_dropout": 0.0,
    "layer_scale_initial_scale": 0.01, "attention_bias": False, "upsampling_ratios": [8, 6, 5, 4],
}  # fmt: skip
LENGTH = 8000  # where config.json says nothing
BOOK = {"sums": "embed_sum", "counts": "cluster_usage", "begun": "initialized"}
KINDS = ("semantic", "acoustic")
HALVES = ("encoder", "decoder")
LAYER: layer_map.Names = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feed.up": "mlp.fc1",
    "feed.down": "mlp.fc2",
    "feed_norm": "post_attention_layernorm",
}
SCALES = {"attention_scale": "self_attn_layer_scale", "feed_scale": "mlp_layer_scale"}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> Mimi:
    """config.json → the tree."""
    for half in HALVES:
        if f"{half}_config" in fields.raw:  # as null: that is how a half is left out
            raise CheckpointError(
                f"config.json has {half}_config={fields.raw[f'{half}_config']!r}: this checkpoint "
                f"has no {half}, and a codec needs both halves; take the whole Mimi"
            )
    fields.inert(FLAG, "use_streaming")
    small = fields.take("vector_quantization_hidden_dimension")
    fields.take("codebook_dim")
    fields.must("codebook_dim", small)
    trunk = seanet_fields.read(fields, None, 0)
    rate, semantic = fields.take("sampling_rate"), fields.take("num_semantic_quantizers")
    stack = _read_stack(fields)
    return Mimi(
        rate=rate,
        trunk=trunk,
        encoder=stack,
        decoder=stack,
        every=_read_every(fields, rate, trunk),
        groups=fields.take("upsample_groups"),
        codes=fields.take("codebook_size"),
        code_dim=small,
        semantic=semantic,
        acoustic=fields.take("num_quantizers") - semantic,
    )


def _read_every(fields: Fields, rate: int, trunk: Seanet) -> int:
    """Frames that become one: by `frame_rate`, of older files, or two."""
    fields.inert(NUMBER, "frame_rate", "_frame_rate")
    found = [fields.raw.get(name) for name in ("_frame_rate", "frame_rate")]
    slow = next((x for x in found if x is not None), rate / (2 * trunk.hop))
    if slow <= 0:
        raise CheckpointError(f"config.json has frame_rate={slow}, which must be positive; correct")
    every = int(math.ceil(rate / trunk.hop) / slow)
    if every < 2:
        raise CheckpointError(
            f"config.json has frame_rate={slow}, but its convolutions make {rate / trunk.hop:g} "
            f"frames a second, of which two or more must become one; take it out (then it is two)"
        )
    return every


def _read_stack(fields: Fields) -> Stack:
    """The one description of both Transformers."""
    dim, heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    groups = fields.take("num_key_value_heads")
    head_dim = fields.take("head_dim", None, kind=SIZE)
    attention = Attention(
        heads,
        None if groups == heads else groups,
        head_dim=None if head_dim == dim / heads else head_dim,
        bias=fields.flag("attention_bias", False),
        mixer=Window(fields.take("sliding_window") - 1),
        dropout=fields.take("attention_dropout"),
    )
    act = fields.choice("hidden_act", activation.READ)
    block = Block(
        attention,
        Feed(fields.take("intermediate_size"), act, bias=False),
        norm=Norm("layer", float(fields.take("norm_eps"))),
        norm_at="pre",
        dropout=0.0,
        scale=float(fields.take("layer_scale_initial_scale")),
    )
    return Stack(
        dim, CodecFrames(), None, repeat(block, fields.take("num_hidden_layers", kind=LAYERS)),
        causal=True, relative=rope.read(fields, LENGTH), dropout=0.0,
    )  # fmt: skip


def write(tree: Mimi) -> dict[str, Any]:
    """The tree → config.json."""
    expect(tree.encoder == tree.decoder, "has two unequal Transformers")
    expect(tree.trunk.norm is None and not tree.trunk.lstm, "has a norm or an LSTM among them")
    out = {
        **seanet_fields.write(tree.trunk), **_write_stack(tree.encoder), "sampling_rate": tree.rate,
        "upsample_groups": tree.groups, "codebook_size": tree.codes, "codebook_dim": tree.code_dim,
        "vector_quantization_hidden_dimension": tree.code_dim, "num_quantizers": tree.books,
        "num_semantic_quantizers": tree.semantic,
    }  # fmt: skip
    if tree.every != 2:
        out["_frame_rate"] = math.ceil(tree.rate / tree.trunk.hop) / tree.every
    return out


def _write_stack(stack: Stack) -> dict[str, Any]:
    block: Block = one(stack.blocks, "shape")
    window = fit(block.attention.mixer, Window, "has no window")
    rotary = fit(stack.relative, Rotary, "has no rotary positions")
    expect(isinstance(block.attention.bias, bool), "has a bias on some projections only")
    return {
        "hidden_size": stack.dim, "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attention.heads,
        "num_key_value_heads": block.attention.groups,
        "head_dim": block.attention.size(stack.dim), "attention_bias": block.attention.bias,
        "attention_dropout": block.attention.dropout, "intermediate_size": block.feed.width,
        "hidden_act": activation.WRITE[block.feed.act], "norm_eps": block.norm.eps,
        "layer_scale_initial_scale": block.scale, "sliding_window": window.left + 1,
        "max_position_embeddings": rotary.length or LENGTH, "rope_parameters": rope.write(rotary),
    }  # fmt: skip


def weights(tree: Mimi, architecture: str) -> WeightMap:
    """The map of a Mimi file: flat, as it is published and as transformers writes it."""
    trunk, ops = tree.trunk, list[Op]()
    for half in HALVES:
        layers = getattr(trunk, half)(tree.dim)
        ops += seanet_map.half(trunk, layers, half)
        ops += _transformer(getattr(tree, half), f"{half}_stack", f"{half}_transformer")
    for kind in KINDS:
        theirs = f"quantizer.{kind}_residual_vector_quantizer"
        ops += seanet_map.books(f"{kind}.books", theirs, getattr(tree, kind), BOOK)
        if tree.projects:
            wide, small = tree.dim, tree.code_dim
            ops.append(Reshaped(f"{kind}.into", f"{theirs}.input_proj.weight", (small, wide, 1)))
            ops.append(Reshaped(f"{kind}.out", f"{theirs}.output_proj.weight", (wide, small, 1)))
    ops += [Same(f"{x}.weight", f"{x}.conv.weight") for x in ("downsample", "upsample")]
    return ops


def _transformer(stack: Stack, ours: str, theirs: str) -> list[Op]:
    ops = layer_map.layers(stack, ours, f"{theirs}.layers", LAYER)
    for i in range(len(stack.blocks)):
        for own, name in SCALES.items():
            ops.append(Same(f"{ours}.layers.{i}.{own}.weight", f"{theirs}.layers.{i}.{name}.scale"))
    return ops


FAMILY = Family(
    "mimi", ARCHITECTURES, USUAL, {}, read, write, weights, tree=Mimi,
    prepares=seanet_fields.prepares,
)  # fmt: skip
