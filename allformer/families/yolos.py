"""YOLOS (Fang et al., 2021): a ViT with tokens that look for objects; nothing else is added."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import BoxHead, EncoderOnly, LearnedPlane, Patches, Pool
from allformer.families import image_encoder, image_map, layer_map, set_fields, vit
from allformer.families.family import Family, architectures, expect, fit, named
from allformer.families.fields import Fields
from allformer.families.kinds import SIZE
from allformer.families.weights import Op, Reshaped, WeightMap

ARCHITECTURES = architectures("Yolos", "ForObjectDetection", "Model")
USUAL = {
    **image_encoder.USUAL, **set_fields.USUAL, "image_size": [512, 864],
    "num_detection_tokens": 100, "use_mid_position_embeddings": True,
}  # fmt: skip
_SIZES = "hidden_size num_hidden_layers num_attention_heads intermediate_size image_size"
_SIZES += " use_mid_position_embeddings"
_COCO = {"num_labels": 91}
PRESETS: dict[str, dict[str, Any]] = {
    "yolos-tiny": named(_SIZES, 192, 12, 3, 768, [800, 1333], False) | _COCO,
    "yolos-small": named(_SIZES, 384, 12, 6, 1536, [512, 864], True) | _COCO,
    "yolos-base": named(_SIZES, 768, 12, 12, 3072, [800, 1344], True) | _COCO,
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    kind = ARCHITECTURES[architecture]
    tokens = fields.take("num_detection_tokens", kind=SIZE)
    source = image_encoder.read_patches(fields, behind=tokens)
    stack = image_encoder.read_stack(fields, source)
    place = LearnedPlane(source.shape, source.placed, "always", behind=tokens)
    mid = place if fields.flag("use_mid_position_embeddings", True) else None
    stack = replace(stack, position=place, between=mid)
    fields.must("auxiliary_loss", False)  # transformers cannot compute it for this family
    loss = set_fields.read(fields)
    if kind == "boxes":
        return EncoderOnly(stack, BoxHead(fields.labels, loss=loss))
    bare = keys and not layer_map.has(keys, "pooler.dense.weight")
    return EncoderOnly(stack, None, None if bare else Pool())


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    out = image_encoder.write_common(model)
    stack = model.encoder
    source = fit(stack.source, Patches, "reads no image")
    place = fit(stack.position, LearnedPlane, "has no learned positions of a plane")
    expect(source.behind > 0, "has no tokens behind its patches")
    expect(stack.between in (None, place), "has other positions between its layers than before")
    out["intermediate_size"] = stack.blocks[0].feed.width
    out["image_size"] = list(source.image)
    out["num_detection_tokens"] = source.behind
    out["use_mid_position_embeddings"] = stack.between is not None
    if model.head is None:
        return out
    head = fit(model.head, BoxHead, "has another head")
    return {**out, **set_fields.write(head.loss)}


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a YOLOS file."""
    base, stack = "" if model.head is None else "vit.", model.encoder
    source, place = stack.source, stack.position
    assert isinstance(source, Patches)
    assert isinstance(place, LearnedPlane)
    ops: list[Op] = image_map.weights(model, base)
    shape = (1, source.behind, stack.dim)
    ops.append(Reshaped("encoder.source.behind", f"{base}embeddings.detection_tokens", shape))
    if stack.between is not None:
        shape4 = (len(stack.blocks) - 1, 1, place.trained, stack.dim)
        name = f"{base}encoder.mid_position_embeddings"
        ops.append(Reshaped("encoder.between.weight", name, shape4))
    if isinstance(model.head, BoxHead):
        ops += set_fields.layers(model.head.class_depth, "head.classes", "class_labels_classifier")
        ops += set_fields.layers(model.head.depth, "head.boxes", "bbox_predictor")
    return ops + layer_map.layers(stack, "encoder", f"{base}encoder.layer", vit.LAYER)


FAMILY = Family(
    "yolos", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="vit.",
    same=set_fields.same,
)  # fmt: skip
