"""ViT (Dosovitskiy et al., 2020): an encoder over the patches of an image, and `[CLS]`.

Tiny and Small are those of Touvron et al. (2020) and of Steiner et al. (2021), which the first
paper has not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderOnly, Patches
from allformer.families import image_encoder, image_map, layer_map
from allformer.families.family import Family, architectures, expect, fit, named
from allformer.families.fields import Fields
from allformer.families.weights import WeightMap

ARCHITECTURES = architectures("ViT", "Model", "ForImageClassification", "ForMaskedImageModeling")
_SIZES = "hidden_size num_hidden_layers num_attention_heads intermediate_size"
PRESETS: dict[str, dict[str, Any]] = {
    "vit-tiny": named(_SIZES, 192, 12, 3, 768),
    "vit-small": named(_SIZES, 384, 12, 6, 1536),
    "vit-base": {},
    "vit-large": named(_SIZES, 1024, 24, 16, 4096),
    "vit-huge": named(f"{_SIZES} patch_size", 1280, 32, 16, 5120, 14),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    return image_encoder.read(fields, ARCHITECTURES[architecture], keys)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = image_encoder.write(model)
    source = fit(model.encoder.source, Patches, "reads no image")
    expect(not source.distilled, "has a distillation token")
    return out


LAYER: layer_map.Names = {
    "attention.qkv": (
        "attention.attention.query", "attention.attention.key", "attention.attention.value",
    ),
    "attention.out": "attention.output.dense",
    "attention_norm": "layernorm_before",
    "feed.up": "intermediate.dense",
    "feed.down": "output.dense",
    "feed_norm": "layernorm_after",
}  # fmt: skip


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a ViT file."""
    base = "" if model.head is None else "vit."
    layers = layer_map.layers(model.encoder, "encoder", f"{base}encoder.layer", LAYER)
    return image_map.weights(model, base) + layers


FAMILY = Family(
    "vit", ARCHITECTURES, image_encoder.USUAL, PRESETS, read, write, weights, prefix="vit.",
    in_memory=image_map.IN_MEMORY,
)  # fmt: skip
