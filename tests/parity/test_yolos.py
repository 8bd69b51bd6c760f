"""YOLOS against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import YolosConfig, YolosForObjectDetection, YolosModel

import allformer as af
from allformer.config import BoxHead, EncoderOnly
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config
from tests.parity import found, zoo
from tests.parity.zoo import Case

SIZES = {
    "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 34,
    "image_size": [12, 20], "patch_size": 4, "num_channels": 2, "num_detection_tokens": 7,
}  # fmt: skip


def yolos(**more: Any) -> Any:
    return functools.partial(YolosConfig, **{**SIZES, **more})


COSTS = {
    "class_cost": 2, "bbox_cost": 3, "giou_cost": 1, "bbox_loss_coefficient": 4,
    "giou_loss_coefficient": 3, "eos_coefficient": 0.3,
}  # fmt: skip
CASES = [
    Case("YOLOS", YolosForObjectDetection, yolos(num_labels=5)),
    Case(
        "YOLOS, other weights", YolosForObjectDetection,
        yolos(num_labels=4, use_mid_position_embeddings=False, qkv_bias=False, **COSTS),
    ),
    Case("YOLOS of one layer", YolosForObjectDetection, yolos(num_hidden_layers=1)),
    Case("YOLOS bare", YolosModel, yolos(layer_norm_eps=1e-3)),
    Case("YOLOS without pooler", YolosModel, yolos(), options={"add_pooling_layer": False}),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("yolos"))


def pixels(*size: int) -> dict[str, Any]:
    make = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(3, 2, *size, generator=make, dtype=torch.float64)}


def check_yolos_forward(name: str, path: Path, *size: int) -> None:
    with torch.no_grad():
        found.compare(BY_NAME[name], af.load(path), zoo.oracle(BY_NAME[name]), pixels(*size))


@each
@pytest.mark.parametrize("size", [(12, 20), (24, 17)])
def test_the_same_numbers(case: Case, size: tuple[int, int], written: dict[str, Path]) -> None:
    check_yolos_forward(case.name, written[case.name], *size)


def check_yolos_training(name: str, path: Path, folder: Path) -> None:
    case = BY_NAME[name]
    classes = zoo.oracle(case).config.num_labels
    inputs = {**pixels(16, 20), "labels": found.labels(classes)}
    found.compare_training(case, path, folder, inputs)


@pytest.mark.parametrize("name", ["YOLOS", "YOLOS, other weights"])
def test_the_same_training(name: str, written: dict[str, Path], tmp_path: Path) -> None:
    check_yolos_training(name, written[name], tmp_path)


@each
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")


def test_the_count_is_what_is_built() -> None:
    for name in ("yolos-tiny", "yolos-small"):
        tree = af.preset(name)
        built = af.build(tree, device="meta")
        assert af.count(tree).parameters == sum(p.numel() for p in built.parameters())


def test_a_fresh_model_is_saved_as_a_yolos(tmp_path: Path) -> None:
    tree, _ = read_config({**SIZES, "model_type": "yolos", "num_labels": 3})
    assert isinstance(tree, EncoderOnly)
    assert isinstance(tree.head, BoxHead)
    model = af.build(tree, seed=0).eval()
    af.save(model, tmp_path)
    theirs = YolosForObjectDetection.from_pretrained(tmp_path)
    x = torch.randn(2, 2, 16, 24)
    with torch.no_grad():
        assert torch.allclose(
            theirs(pixel_values=x).pred_boxes, model(pixel_values=x).pred_boxes, atol=1e-5
        )


def test_what_transformers_cannot_compute_is_refused() -> None:
    raw = {**SIZES, "model_type": "yolos", "architectures": ["YolosForObjectDetection"]}
    with pytest.raises(CheckpointError, match="auxiliary_loss=True"):
        read_config({**raw, "auxiliary_loss": True})
