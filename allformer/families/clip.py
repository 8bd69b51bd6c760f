"""CLIP (Radford et al., 2021): a text tower and a vision tower that are taught to agree.

config.json has a config for each tower inside; the towers' own classes may be asked for of such a
directory too: `load(path, architecture="CLIPTextModelWithProjection")`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from allformer.config import ClassHead, Contrast, EncoderOnly, Model, TwoTowers
from allformer.families import clip_text, clip_vision, layer_map
from allformer.families.clip_layers import WHY, read_width
from allformer.families.clip_layers import kind as tower_kind
from allformer.families.family import Family, fit, head_kind, named
from allformer.families.fields import Fields
from allformer.families.heads import class_head
from allformer.families.kinds import NUMBER, OBJECT, WHOLE
from allformer.families.weights import Ignored, Renamed, Same, Unused, WeightMap

TOWERS = {**clip_text.ARCHITECTURES, **clip_vision.ARCHITECTURES}
ARCHITECTURES = {"CLIPModel": "Contrast", "CLIPForImageClassification": "class", **TOWERS}
USUAL = {"projection_dim": 512, "logit_scale_init_value": 2.6592}
_text = partial(
    named, "hidden_size num_hidden_layers num_attention_heads intermediate_size projection_dim"
)
LARGE = {
    "projection_dim": 768,
    "text_config": _text(768, 12, 12, 3072, 768),
    "vision_config": {**_text(1024, 24, 16, 4096, 768), "patch_size": 14},
}
PRESETS: dict[str, dict[str, Any]] = {
    "clip-vit-base-patch32": {},
    "clip-vit-base-patch16": {"vision_config": {"patch_size": 16}},
    "clip-vit-large-patch14": LARGE,
    "clip-vit-large-patch14-336": LARGE
    | {"vision_config": {**LARGE["vision_config"], "image_size": 336}},  # type: ignore[dict-item]
}


def inner(fields: Fields, name: str, usual: dict[str, Any]) -> Fields:
    """The fields of a tower. Files before 2023 say them in `text_config_dict` too, and what that
    one leaves out is usual, whatever the other says."""
    older = f"{name}_dict"
    fields.inert(OBJECT, name, older)
    raw = dict(fields.raw.get(name) or {})
    if fields.raw.get(older) is not None:
        raw |= usual | fields.raw[older]
    return Fields(raw, f"{fields.kind} {name}", usual, fields.ignore)


def read(fields: Fields, architecture: str, keys: Collection[str]) -> Model:
    """config.json → the tree."""
    text = inner(fields, "text_config", clip_text.TEXT)
    vision = inner(fields, "vision_config", clip_vision.VISION)
    if ARCHITECTURES[architecture] == "Contrast":
        return _read_both(fields, text, vision)
    fields.inert(WHOLE, "projection_dim")
    fields.inert(NUMBER, "logit_scale_init_value")
    model: Model
    if architecture in clip_text.ARCHITECTURES:
        tower, model = text, clip_text.read(text, architecture, keys)
    elif architecture in clip_vision.ARCHITECTURES:
        tower, model = vision, clip_vision.read(vision, architecture, keys)
    else:
        read_width(vision, "state")
        tower, stack = vision, clip_vision.read_stack(vision)
        model = EncoderOnly(stack, class_head(fields, "patches"))
    tower.close()
    return model


def _read_both(fields: Fields, text: Fields, vision: Fields) -> TwoTowers:
    """The whole: the width of the vectors is told outside of the towers, which have one too."""
    width, scale = fields.take("projection_dim"), float(fields.take("logit_scale_init_value"))
    stacks = clip_text.read_stack(text), clip_vision.read_stack(vision)
    vectors = clip_text.read_head(stacks[0], width), clip_vision.read_head(vision, width)
    for tower in (text, vision):
        read_width(tower, "state")
        tower.close()
    return TwoTowers(*stacks, Contrast(*vectors, scale))


def write(model: Any) -> dict[str, Any]:
    """The tree → config.json; a tower alone is of another model_type."""
    if isinstance(model.head, ClassHead):
        stack = fit(model, EncoderOnly, "is not an encoder").encoder
        return {"vision_config": _told("vision", clip_vision.write_stack(stack))}
    head = fit(model.head, Contrast, "does not compare two towers")
    width = {"projection_dim": head.text.width}
    return {
        **width,
        "logit_scale_init_value": head.scale,
        "text_config": _told("text", clip_text.write_stack(model.text) | width),
        "vision_config": _told("vision", clip_vision.write_stack(model.vision) | width),
        "text_config_dict": None,
        "vision_config_dict": None,
    }


def _told(tower: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "model_type": f"clip_{tower}_model"}


def weights(model: Any, architecture: str) -> WeightMap:
    """The map of a CLIP file."""
    if architecture in TOWERS:
        return _tower(model, architecture)
    post = "vision_model.post_layernorm"
    if ARCHITECTURES[architecture] == "class":
        norm = "vision_model.pre_layrnorm"
        return [
            *clip_vision.stack_weights(model.encoder, "encoder", "vision_model."),
            *layer_map.dense("head.out", "classifier"),
            # of the vector, which a classifier of patches does not read
            *(Unused(f"{post}.{x}", f"{norm}.{x}", apart=True) for x in ("weight", "bias")),
            Ignored(f"{clip_vision.OTHERS}|{clip_vision.PROJECTION}", WHY),
        ]
    return [
        *clip_text.stack_weights(model.text, "text", "text_model."),
        *clip_vision.stack_weights(model.vision, "vision", "vision_model."),
        *layer_map.dense("head.image.norm", post),
        Same("head.text.out.weight", clip_text.PROJECTION),
        Same("head.image.out.weight", clip_vision.PROJECTION),
        Same("head.scale", "logit_scale"),
    ]


def _tower(model: Any, architecture: str) -> WeightMap:
    """One tower of a file of both, where its names have the tower's before them."""
    text = architecture in clip_text.ARCHITECTURES
    tower: Callable[[Any, str], WeightMap] = clip_text.weights if text else clip_vision.weights
    ops, name = tower(model, architecture), "text_model" if text else "vision_model"
    return ops if TOWERS[architecture] == "vector" else [Renamed(rf"^{name}\.", ""), *ops]


def kind(model: Any) -> str:
    """Of a head as the families of the towers name it, or by its own name."""
    return tower_kind(model) if head_kind(model) == "VectorHead" else head_kind(model)


FAMILY = Family("clip", ARCHITECTURES, USUAL, PRESETS, read, write, weights, kind=kind)
