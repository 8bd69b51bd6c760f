"""DINOv2, with registers and without, against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
)

import allformer as af
from allformer.config import Feed
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import pictures, zoo
from tests.parity.zoo import Case

SIZES = {
    "hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3, "mlp_ratio": 2,
    "image_size": 20, "patch_size": 4, "num_channels": 2,
}  # fmt: skip


def dino(**more: Any) -> Any:
    return functools.partial(Dinov2Config, **{**SIZES, **more})


def noted(**more: Any) -> Any:
    return functools.partial(Dinov2WithRegistersConfig, **{**SIZES, **more})


SWIGLU = {"use_swiglu_ffn": True}
CASES = [
    Case("Dino", Dinov2Model, dino(layer_norm_eps=1e-2)),
    Case("Dino without a mask", Dinov2Model, dino(use_mask_token=False, qkv_bias=False)),
    Case("Dino SwiGLU", Dinov2Model, dino(**SWIGLU, layerscale_value=0.3)),
    Case("Dino that dropped paths", Dinov2Model, dino(drop_path_rate=0.3)),
    Case("Dino classes", Dinov2ForImageClassification, dino(num_labels=5, hidden_act="relu")),
    Case("Dino SwiGLU classes", Dinov2ForImageClassification,
         dino(**SWIGLU, num_labels=3, hidden_dropout_prob=0.1)),
    Case("registers", Dinov2WithRegistersModel,
         noted(num_register_tokens=3, drop_path_rate=0.1)),
    Case("registers SwiGLU classes", Dinov2WithRegistersForImageClassification,
         noted(**SWIGLU, num_labels=5)),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("dinov2"))


@each
@pytest.mark.parametrize("size", [None, (28, 12), (31, 37), (12, 8)])
def test_the_same_numbers(
    case: Case, size: tuple[int, int] | None, written: dict[str, Path]
) -> None:
    with torch.no_grad():
        ours = af.load(written[case.name])
        pictures.compare(case, ours, zoo.oracle(case), pictures.images(case, size))


@pytest.mark.parametrize("name", ["Dino", "registers", "Dino SwiGLU classes"])
def test_transformers_as_it_is_differs_by_its_own_rounding(
    name: str, written: dict[str, Path]
) -> None:
    case = BY_NAME[name]
    inputs = pictures.images(case, (28, 36))  # it interpolates positions in fp32
    zoo.compare_as_it_is(case, af.load(written[name]), zoo.oracle(case), inputs)


@pytest.mark.parametrize("name", ["Dino", "registers"])
def test_the_same_numbers_with_hidden_patches(name: str, written: dict[str, Path]) -> None:
    case = BY_NAME[name]
    inputs = pictures.hidden(case, pictures.images(case))
    with torch.no_grad():
        pictures.compare(case, af.load(written[name]), zoo.oracle(case), inputs)


@pytest.mark.parametrize("size", [None, (12, 28)])
@pytest.mark.parametrize(
    "name", ["Dino classes", "Dino SwiGLU classes", "registers SwiGLU classes"]
)
def test_the_same_training(
    name: str, size: tuple[int, int] | None, written: dict[str, Path], tmp_path: Path
) -> None:
    case = BY_NAME[name]
    inputs = pictures.labelled(case, pictures.images(case, size))
    pictures.compare_training(case, written[name], tmp_path, inputs)


@each
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")


def test_a_matrix_of_two_that_is_cut_short_is_refused(
    written: dict[str, Path], tmp_path: Path
) -> None:
    name = "encoder.layer.1.mlp.weights_in.weight"
    cut = zoo.rewrite(written["Dino SwiGLU"], tmp_path / "cut", lambda t: {**t, name: t[name][1:]})
    with pytest.raises(CheckpointError, match=r"1 unexpected[\s\S]*weights_in\.weight"):
        af.load(cut)


def test_the_dtype_of_a_matrix_of_two_is_converted(
    written: dict[str, Path], tmp_path: Path
) -> None:
    half = af.load(written["Dino SwiGLU"], dtype=torch.bfloat16)
    assert half.encoder.layers[0].feed.gate.weight.dtype == torch.bfloat16
    af.save(half, tmp_path / "half")
    before, after = zoo.files_of(written["Dino SwiGLU"]), zoo.files_of(tmp_path / "half")
    assert all(torch.equal(before[name].bfloat16(), x) for name, x in after.items())


def test_what_its_files_cannot_say_is_refused() -> None:
    model = read_config({**SIZES, "model_type": "dinov2"})[0]
    stack = model.reader
    block = stack.blocks[0]
    for other, why in (
        (replace(block, scale=None), "has no layer scale"),
        (replace(block, feed=Feed(43, "gelu")), "no multiple of 21"),
        (replace(block, feed=Feed(32, "gelu", gated=True)), "another activation than SiLU"),
    ):
        changed = replace(model, encoder=replace(stack, blocks=(other, other)))
        with pytest.raises(CheckpointError, match=why):
            write_config(changed, family="dinov2")
    none = {**SIZES, "model_type": "dinov2_with_registers", "num_register_tokens": 0}
    with pytest.raises(CheckpointError, match="num_register_tokens=0"):
        read_config(none)


def test_paths_are_dropped_in_training_as_its_file_says(written: dict[str, Path]) -> None:
    model = af.load(written["Dino that dropped paths"])
    assert [layer.drop_path for layer in model.encoder.layers] == [0.3, 0.3]
    tree, _ = write_config(model.config, family="dinov2")
    assert tree["drop_path_rate"] == 0.3
    first, last = model.config.encoder.blocks
    other = replace(model.config.encoder, blocks=(first, replace(last, drop_path=0.4)))
    # Other shares by layer are in no config.json: nothing is said of them.
    assert write_config(replace(model.config, encoder=other))[0]["drop_path_rate"] == 0.0


PUBLISHED = {
    "dinov2-small": 22_056_576,
    "dinov2-base": 86_580_480,
    "dinov2-large": 304_368_640,
    "dinov2-giant": 1_136_480_768,
    "dinov2-base-registers": 86_583_552,
    "dinov2-giant-registers": 1_136_486_912,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_transformers_models_of_the_published_sizes(name: str) -> None:
    raw, _ = write_config(af.preset(name))
    kind = Dinov2WithRegistersConfig if "registers" in name else Dinov2Config
    assert raw["model_type"] == kind.model_type
    with torch.device("meta"):
        theirs = AutoModel.from_config(kind(**raw))
    parameters = sum(p.numel() for p in theirs.parameters())
    assert af.count(af.preset(name)).parameters == parameters == PUBLISHED[name]
