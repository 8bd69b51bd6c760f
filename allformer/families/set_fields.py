"""What families that find objects say alike in config.json, and in their files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.config import BoxHead, SetLoss
from allformer.families import layer_map
from allformer.families.fields import Fields
from allformer.families.kinds import NUMBER
from allformer.families.weights import Op

# transformers' names of what the set loss weighs, and their usual values.
NAMES = {
    "match_class": "class_cost", "match_box": "bbox_cost", "match_iou": "giou_cost",
    "box": "bbox_loss_coefficient", "iou": "giou_loss_coefficient", "nothing": "eos_coefficient",
}  # fmt: skip
USUAL = {name: getattr(SetLoss(), ours) for ours, name in NAMES.items()}


def read(fields: Fields) -> SetLoss:
    """The weights of the loss."""
    said: dict[str, Any] = {o: float(fields.take(name, kind=NUMBER)) for o, name in NAMES.items()}
    return SetLoss(**said)


def write(loss: SetLoss) -> dict[str, Any]:
    """Whole numbers as such: transformers takes no others for most of them."""
    said = {name: getattr(loss, ours) for ours, name in NAMES.items()}
    return {n: int(x) if n != "eos_coefficient" and x == int(x) else x for n, x in said.items()}


def layers(depth: int, ours: str, theirs: str) -> list[Op]:
    """`layers(3, "head.boxes", "bbox_predictor")`: `bbox_predictor.layers.0`, …"""
    return [
        op
        for i in range(depth)
        for op in layer_map.dense(f"{ours}.layers.{i}", f"{theirs}.layers.{i}")
    ]


def same(model: Any) -> Any:
    """For `Family.same`: which layers are scored in training is in no file."""
    if not isinstance(model.head, BoxHead):
        return model
    plain = replace(model.head.loss, auxiliary=False)
    return replace(model, head=replace(model.head, loss=plain))
