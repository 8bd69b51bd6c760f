"""DeiT (Touvron et al., 2020): a ViT with a second token, which learnt from a teacher.

DeiT without that token is a ViT, in its files too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderOnly, Patches, TeacherHead
from allformer.families import image_encoder, image_map, layer_map, vit
from allformer.families.family import Family, architectures, expect, fit
from allformer.families.fields import Fields
from allformer.families.weights import WeightMap

ARCHITECTURES = architectures(
    "DeiT", "Model", "ForImageClassification", "ForImageClassificationWithTeacher",
    "ForMaskedImageModeling",
)  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "deit-tiny": vit.PRESETS["vit-tiny"],
    "deit-small": vit.PRESETS["vit-small"],
    "deit-base": {},
    "deit-base-384": {"image_size": 384},
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    return image_encoder.read(fields, ARCHITECTURES[architecture], keys, distilled=True)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = image_encoder.write(model)
    source = fit(model.encoder.source, Patches, "reads no image")
    expect(source.distilled, "has no distillation token")
    return out


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a DeiT file."""
    base = "" if model.head is None else "deit."
    ops = image_map.weights(model, base)
    if isinstance(model.head, TeacherHead):
        ops += layer_map.dense("head.cls", "cls_classifier")
        ops += layer_map.dense("head.distilled", "distillation_classifier")
    return ops + layer_map.layers(model.encoder, "encoder", f"{base}encoder.layer", vit.LAYER)


FAMILY = Family(
    "deit", ARCHITECTURES, image_encoder.USUAL, PRESETS, read, write, weights, prefix="deit.",
    in_memory=image_map.IN_MEMORY,
)  # fmt: skip
