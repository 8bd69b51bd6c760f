"""SigLIP against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from transformers import (
    SiglipConfig,
    SiglipForImageClassification,
    SiglipModel,
    SiglipTextConfig,
    SiglipTextModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import allformer as af
from tests.parity import zoo
from tests.parity.test_clip import LAYERS, SCORES, compare, images, texts
from tests.parity.zoo import Case

TEXT = LAYERS | {
    "vocab_size": 83, "hidden_size": 24, "max_position_embeddings": 13, "projection_size": 21,
}  # fmt: skip
VISION = LAYERS | {"hidden_size": 21, "image_size": 15, "patch_size": 4}
BOTH = {"text_config": TEXT, "vision_config": VISION}
ODD = {"hidden_act": "gelu", "layer_norm_eps": 1e-2}


def make(kind, **fields):
    return functools.partial(kind, **fields)


WORDS = Case("siglip text", SiglipTextModel, make(SiglipTextConfig, **TEXT), labels="none")
SIGHT = Case(
    "siglip vision", SiglipVisionModel, make(SiglipVisionConfig, **VISION, **ODD), labels="none"
)
WHOLE = Case("siglip both", SiglipModel, make(SiglipConfig, **BOTH), labels="none")
CLASSES = Case(
    "siglip classes", SiglipForImageClassification, make(SiglipConfig, **BOTH, num_labels=3),
    labels="class",
)  # fmt: skip
PATCHES = Case(
    "siglip patches", SiglipVisionModel, make(SiglipVisionConfig, **VISION, vision_use_head=False),
    labels="none",
)  # fmt: skip
CASES = [WORDS, SIGHT, WHOLE, CLASSES, PATCHES]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return zoo.write_all(CASES, tmp_path_factory.mktemp("siglip"))


def test_a_text_is_read_at_its_last_column_padding_or_not(disk: dict[str, Path]) -> None:
    ours, theirs = af.load(disk["siglip text"]), zoo.oracle(WORDS)
    for side in ("none", "right"):
        zoo.compare(WORDS, ours, theirs, texts(side))


def test_a_probe_reads_images_of_any_size(disk: dict[str, Path]) -> None:
    ours, theirs = af.load(disk["siglip vision"]), zoo.oracle(SIGHT)
    names = ("pooler_output", "last_hidden_state")
    compare(SIGHT, ours, theirs, {"pixel_values": images()}, *names)
    larger = {"pixel_values": images(2, (13, 22)), "interpolate_pos_encoding": True}
    compare(SIGHT, ours, theirs, larger, *names)


def test_a_tower_without_a_probe_gives_its_patches(disk: dict[str, Path], tmp_path: Path) -> None:
    ours, theirs = af.load(disk["siglip patches"]), zoo.oracle(PATCHES)
    compare(PATCHES, ours, theirs, {"pixel_values": images()}, "last_hidden_state")
    assert ours.head is None
    af.save(af.build(ours.config, seed=0), tmp_path)
    assert not json.loads((tmp_path / "config.json").read_text())["vision_use_head"]


def check_both(case: Case, path: Path) -> None:
    """Scores, the sigmoid's loss, every gradient."""
    ours, theirs = af.load(path), zoo.fresh_oracle(case)
    for side in ("none", "right"):
        compare(case, ours, theirs, texts(side) | {"pixel_values": images(3)}, *SCORES)
    inputs = texts() | {"pixel_values": images(), "return_loss": True}
    zoo._compare_gradients(case, ours, theirs, inputs)
    assert ours.head.bias.grad


def test_both_towers_agree_and_learn_alike(disk: dict[str, Path]) -> None:
    check_both(WHOLE, disk["siglip both"])


def test_classes_of_images_agree(disk: dict[str, Path]) -> None:
    ours, theirs = af.load(disk["siglip classes"]), zoo.fresh_oracle(CLASSES)
    inputs = {"pixel_values": images(), "labels": torch.tensor([0, 2, 2, 1])}
    compare(CLASSES, ours, theirs, inputs, "logits", "loss")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_files_round_trip(case: Case, disk: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, disk[case.name], tmp_path / "again")


def test_a_tower_is_read_from_a_file_of_both(disk: dict[str, Path], tmp_path: Path) -> None:
    whole = af.load(disk["siglip both"])
    given = {"SiglipTextModel": texts(), "SiglipVisionModel": {"pixel_values": images()}}
    for name, inputs in given.items():
        tower = af.load(disk["siglip both"], architecture=name)
        (vector,) = whole(**inputs).values()
        assert torch.allclose(
            torch.nn.functional.normalize(tower(**inputs).pooler_output, dim=-1), vector
        )
        af.save(tower, tmp_path / name)
        kind = json.loads((tmp_path / name / "config.json").read_text())["model_type"]
        assert kind == ("siglip_text_model" if "Text" in name else "siglip_vision_model")


def test_the_preset_has_the_published_size() -> None:
    tree = af.preset("siglip-base-patch16-224")
    with torch.device("meta"):
        wanted = SiglipModel(SiglipConfig()).num_parameters()
    assert af.count(tree).parameters == wanted
