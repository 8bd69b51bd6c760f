"""SigLIP (Zhai et al., 2023): two towers, of which each pair is judged by itself, by a sigmoid."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from allformer.config import ClassHead, Contrast, EncoderOnly, Model, Stack, TwoTowers
from allformer.families import layer_map
from allformer.families import siglip_towers as towers
from allformer.families.clip import inner
from allformer.families.family import Family, fit, named
from allformer.families.fields import Fields
from allformer.families.heads import class_head
from allformer.families.weights import Ignored, Renamed, Reshaped, Unused, WeightMap

ARCHITECTURES = {
    "SiglipModel": "Contrast", "SiglipForImageClassification": "class",
    "SiglipTextModel": "VectorHead", "SiglipVisionModel": "VectorHead",
}  # fmt: skip
PROBE = "vision_model.head"
START, BIAS = 2.302585, -10.0  # ln 10 and −10, where the paper starts (section 3.2)
_sizes = partial(named, "hidden_size num_hidden_layers num_attention_heads intermediate_size")
SO400M = _sizes(1152, 27, 16, 4304)
PRESETS: dict[str, dict[str, Any]] = {
    "siglip-base-patch16-224": {},
    "siglip-base-patch16-256": {"vision_config": {"image_size": 256}},
    "siglip-so400m-patch14-384": {
        "text_config": SO400M, "vision_config": {**SO400M, "image_size": 384, "patch_size": 14},
    },
}  # fmt: skip


def read(fields: Fields, architecture: str, keys: Collection[str]) -> Model:
    """config.json → the tree."""
    text = inner(fields, "text_config", towers.TEXT)
    vision = inner(fields, "vision_config", towers.VISION)
    model: Model
    if architecture == "SiglipTextModel":
        used, model = [text], EncoderOnly(*towers.read_text(text, "pooler_output"))
    elif architecture == "SiglipVisionModel":
        used, model = [vision], towers.read_sight(vision)
    elif architecture == "SiglipModel":
        vision.must("vision_use_head", True)
        words = towers.read_text(text, "text_embeds")
        sight = towers.read_vision(vision, "image_embeds")
        head = Contrast(words.head, sight.head, START, BIAS)
        used, model = [text, vision], TwoTowers(words.stack, sight.stack, head)
    else:
        vision.must("vision_use_head", True)  # held, and not read
        stack = towers.read_vision(vision, "pooler_output").stack
        used, model = [vision], EncoderOnly(stack, class_head(fields, "patches"))
    for tower in used:
        tower.close()
    return model


def write(model: Any) -> dict[str, Any]:
    """The tree → config.json; a tower alone is of another model_type."""
    if isinstance(model.head, ClassHead):
        stack = fit(model, EncoderOnly, "is not an encoder").encoder
        return {"vision_config": _told("vision", towers.write_vision(stack))}
    head = fit(model.head, Contrast, "does not compare two towers")
    text = towers.write_text(towers.Tower(model.text, head.text))
    return {
        "text_config": _told("text", text),
        "vision_config": _told("vision", towers.write_vision(model.vision)),
    }


def _told(tower: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "model_type": f"siglip_{tower}_model"}


def same(model: Any) -> Any:
    """Without where scale and bias start, which no file says."""
    if not isinstance(model, TwoTowers) or model.head.bias is None:
        return model
    return replace(model, head=replace(model.head, scale=START, bias=BIAS))


def weights(model: Any, architecture: str) -> WeightMap:
    """The map of a SigLIP file."""
    if ARCHITECTURES[architecture] == "VectorHead":
        text = architecture == "SiglipTextModel"
        name = "text_model" if text else "vision_model"
        return [Renamed(rf"^{name}\.", ""), *towers.weights(text, model, architecture)]
    if ARCHITECTURES[architecture] == "class":
        return _class_weights(model.encoder)
    return [
        *towers.text_weights(model.text, "text", "head.text", "text_model."),
        *towers.vision_weights(model.vision, "vision", "vision_model."),
        *towers.probe_weights(model.vision, "head.image.probe", PROBE),
        Reshaped("head.scale", "logit_scale", (1,)),
        Reshaped("head.bias", "logit_bias", (1,)),
    ]


def _class_weights(stack: Stack) -> WeightMap:
    """Of a classifier of patches, which holds a probe and does not read it."""
    norm, shapes = "vision_model.post_layernorm.weight", towers.probe_shapes(stack)
    return [
        *towers.vision_weights(stack, "encoder", "vision_model."),
        *layer_map.dense("head.out", "classifier"),
        *(Unused(f"{PROBE}.{x}", norm, apart=True, shape=shape) for x, shape in shapes.items()),
        Ignored(r"text_model\..*|logit_scale|logit_bias", towers.WHY),
    ]


FAMILY = Family("siglip", ARCHITECTURES, {}, PRESETS, read, write, weights, same=same)
