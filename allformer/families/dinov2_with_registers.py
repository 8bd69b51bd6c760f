"""DINOv2 with registers (Darcet et al., 2023): tokens without a place, to keep notes in.

Without them, some patches of plain background are used for that, which spoils maps of attention.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderOnly, LearnedPlane, Patches
from allformer.families import dinov2, image_encoder, image_map
from allformer.families.family import Family, architectures, expect, fit
from allformer.families.fields import Fields
from allformer.families.weights import WeightMap

NAME = "dinov2_with_registers"
ARCHITECTURES = architectures("Dinov2WithRegisters", "Model", "ForImageClassification")
USUAL = {
    **{name: value for name, value in dinov2.USUAL.items() if name != "use_mask_token"},
    "patch_size": 16,
    "num_register_tokens": 4,
}
PRESETS = {
    f"dinov2-{size}-registers": {**fields, "patch_size": 14}
    for size, fields in dinov2.SIZES.items()
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    count = fields.take("num_register_tokens")
    source = image_encoder.read_patches(fields, mask=True, registers=count)
    return dinov2.read_over(fields, ARCHITECTURES[architecture], source, antialias=True)


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = dinov2.write_over(model)
    source = fit(model.encoder.source, Patches, "reads no image")
    expect(source.registers > 0, "has no registers")
    position = fit(model.encoder.position, LearnedPlane, "has no learned positions")
    expect(position.antialias, "has positions that are not smoothed where they shrink")
    return {**out, "num_register_tokens": source.registers}


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a DINOv2 file with registers."""
    return dinov2.weights_over(model, NAME)


FAMILY = Family(
    NAME, ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix=f"{NAME}.",
    in_memory=image_map.ATTENTION, drop_path=True,
)  # fmt: skip
