"""What ViT and DeiT have in common in config.json: patches, pre-norm layers, their heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import (
    Attention,
    Block,
    EncoderOnly,
    Feed,
    Head,
    LearnedPlane,
    Norm,
    Patches,
    PixelHead,
    Pool,
    Stack,
    TeacherHead,
    repeat,
)
from allformer.errors import CheckpointError
from allformer.families import activation, layer_map
from allformer.families.family import expect, fit, one
from allformer.families.fields import Fields
from allformer.families.heads import class_head
from allformer.families.kinds import AREA, LAYERS, SIZE, TEXT

# What an absent field means to ViT and DeiT; the labels of a fresh classifier are two.
USUAL = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12, "image_size": 224,
    "patch_size": 16, "num_channels": 3, "qkv_bias": True, "encoder_stride": 16,
    "pooler_act": "tanh",
}  # fmt: skip


def read_patches(fields: Fields, **more: Any) -> Patches:
    """The source; `more` are the tokens that this family has."""
    image = fields.take("image_size", kind=AREA)
    patch = fields.take("patch_size", kind=AREA)
    if isinstance(patch, list):
        if patch[0] != patch[1]:
            raise CheckpointError(
                f"config.json has patch_size={patch}, but patches are squares here; "
                f"convert the model to one size"
            )
        patch = patch[0]
    size = tuple(image) if isinstance(image, list) else (image, image)
    return Patches(patch, fields.take("num_channels"), size, **more)


def read_attention(fields: Fields) -> Attention:
    """All projections have a bias, or the last one alone."""
    return Attention(
        fields.take("num_attention_heads"),
        bias=True if fields.flag("qkv_bias", True) else ("out",),
        dropout=fields.take("attention_probs_dropout_prob"),
    )


def read_stack(fields: Fields, source: Patches) -> Stack:
    """The layers that config.json means, over a source."""
    norm = Norm("layer", float(fields.take("layer_norm_eps")))
    dropout = fields.take("hidden_dropout_prob")
    feed = Feed(fields.take("intermediate_size"), fields.choice("hidden_act", activation.READ))
    block = Block(read_attention(fields), feed, norm=norm, norm_at="pre", dropout=dropout)
    return Stack(
        fields.take("hidden_size"),
        source,
        LearnedPlane(source.shape, source.placed, behind=source.behind),
        repeat(block, fields.take("num_hidden_layers", kind=LAYERS)),
        final_norm=norm,
        dropout=dropout,
    )


def masks(kind: str, keys: Collection[str]) -> bool:
    """Whether there is a vector for hidden patches: the weights of a bare model tell."""
    return kind == "pixels" or (kind == "bare" and layer_map.has(keys, "embeddings.mask_token"))


def read_pool(fields: Fields, kind: str, dim: int, keys: Collection[str]) -> Pool | None:
    """A bare model has a pooler by default, or as its weights tell."""
    fields.inert(SIZE, "pooler_output_size")
    fields.inert(TEXT, "pooler_act")
    if kind != "bare" or (keys and not layer_map.has(keys, "pooler.dense.weight")):
        return None
    fields.must("pooler_output_size", dim)
    return Pool(fields.choice("pooler_act", activation.READ))


def read_pixels(fields: Fields, kind: str) -> PixelHead | None:
    """The head that paints hidden patches; other heads do not read its size."""
    if kind == "pixels":
        return PixelHead(fields.take("encoder_stride"))
    fields.inert(SIZE, "encoder_stride")
    return None


def read(fields: Fields, kind: str, keys: Collection[str], **tokens: bool) -> EncoderOnly:
    """config.json → the tree, with a head of this kind; `tokens` are those of the family."""
    stack = read_stack(fields, read_patches(fields, mask=masks(kind, keys), **tokens))
    head: Head | None = read_pixels(fields, kind)
    if kind == "class":
        head = class_head(fields, "first")
    elif kind == "teacher":
        head = TeacherHead(fields.labels)
    return EncoderOnly(stack, head, read_pool(fields, kind, stack.dim, keys))


def write_area(size: tuple[int, ...]) -> int | list[int]:
    """One number for a square."""
    return size[0] if size[0] == size[1] else list(size)


def write_patches(source: Patches) -> dict[str, Any]:
    """The inverse of `read_patches`."""
    expect(source.bias, "has no bias on its patches")
    return {
        "image_size": write_area(source.image),
        "patch_size": source.patch,
        "num_channels": source.channels,
    }


def write_common(model: EncoderOnly) -> dict[str, Any]:
    """What ViT, DeiT and DINOv2 say alike."""
    stack = fit(model, EncoderOnly, "is not an encoder").encoder
    source = fit(stack.source, Patches, "reads no image")
    block = one(stack.blocks, "shape")
    fit(stack.position, LearnedPlane, "has no learned positions of a plane")
    expect(stack.final_norm is not None, "has no norm after its layers")
    return {
        **write_patches(source),
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attention.heads,
        "qkv_bias": block.attention.biased("q"),
        "hidden_act": activation.WRITE[block.feed.act],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "layer_norm_eps": block.norm.eps,
    }


def write(model: EncoderOnly) -> dict[str, Any]:
    """The inverse of `read`."""
    out = write_common(model)
    out["intermediate_size"] = model.encoder.blocks[0].feed.width
    if isinstance(model.head, PixelHead):
        out["encoder_stride"] = model.head.stride
    if model.pool is not None:
        expect(model.pool.dense, "has a pooler without a layer")
        out["pooler_act"] = activation.WRITE[model.pool.act]
    return out
