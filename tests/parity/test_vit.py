"""ViT against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTModel,
)

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.config import ClassHead, EncoderOnly, PixelHead
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.parity import pictures, zoo
from tests.parity.zoo import Case

SIZES = {
    "hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34,
    "image_size": 20, "patch_size": 4, "encoder_stride": 4, "num_channels": 2,
}  # fmt: skip


def vit(**more: Any) -> Any:
    return functools.partial(ViTConfig, **{**SIZES, **more})


MASKED = {"add_pooling_layer": False, "use_mask_token": True}
SEVERAL = {"num_labels": 4, "problem_type": "multi_label_classification"}
CASES = [
    Case("ViT", ViTModel, vit(layer_norm_eps=1e-2)),
    Case("ViT without pooler", ViTModel, vit(qkv_bias=False), options={"add_pooling_layer": False}),
    Case("ViT, another pooler", ViTModel, vit(pooler_act="relu", hidden_act="gelu_new")),
    Case("ViT with a mask", ViTModel, vit(), options=MASKED),
    Case("ViT classes", ViTForImageClassification, vit(num_labels=5, hidden_dropout_prob=0.1)),
    Case("ViT several", ViTForImageClassification, vit(**SEVERAL)),
    Case("ViT regression", ViTForImageClassification, vit(num_labels=1, hidden_act="quick_gelu")),
    Case("ViT pixels", ViTForMaskedImageModeling, vit()),
    Case("ViT pixels, wide", ViTForMaskedImageModeling, vit(encoder_stride=3)),
]
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("vit"))


def check_forward(name: str, path: Path, **more: Any) -> None:
    case = BY_NAME[name]
    with torch.no_grad():
        inputs = {**pictures.images(case, more.pop("size", None)), **more}
        pictures.compare(case, af.load(path), zoo.oracle(case), inputs)


@each
def test_the_same_numbers(case: Case, written: dict[str, Path]) -> None:
    check_forward(case.name, written[case.name])


@pytest.mark.parametrize("name", ["ViT", "ViT classes"])
@pytest.mark.parametrize("size", [(28, 12), (20, 24), (31, 33), (20, 20)])
def test_the_same_numbers_of_other_sizes(
    name: str, size: tuple[int, int], written: dict[str, Path]
) -> None:
    check_forward(name, written[name], size=size, interpolate_pos_encoding=True)


def test_the_same_numbers_with_a_mask_over_tokens(written: dict[str, Path]) -> None:
    mask = torch.ones(pictures.ROWS, 26).long()
    mask[1, 11:] = 0
    mask[2, ::3] = 0
    mask[:, 0] = 1
    check_forward("ViT", written["ViT"], attention_mask=mask)


@pytest.mark.parametrize("name", ["ViT with a mask", "ViT pixels"])
def test_the_same_numbers_with_hidden_patches(name: str, written: dict[str, Path]) -> None:
    case = BY_NAME[name]
    inputs = pictures.hidden(case, pictures.images(case))
    with torch.no_grad():
        pictures.compare(case, af.load(written[name]), zoo.oracle(case), inputs)


@pytest.mark.parametrize("name", ["ViT classes", "ViT several", "ViT regression"])
def test_the_same_training(name: str, written: dict[str, Path], tmp_path: Path) -> None:
    case = BY_NAME[name]
    inputs = pictures.labelled(case, pictures.images(case, (24, 28)))
    inputs["interpolate_pos_encoding"] = True
    pictures.compare_training(case, written[name], tmp_path, inputs)


def test_the_same_training_to_paint(written: dict[str, Path], tmp_path: Path) -> None:
    case = BY_NAME["ViT pixels"]
    inputs = pictures.hidden(case, pictures.images(case))
    pictures.compare_training(case, written[case.name], tmp_path, inputs)


@each
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")


def test_the_body_of_a_classifier_and_a_classifier_on_a_body(written: dict[str, Path]) -> None:
    body = af.load(written["ViT classes"], architecture="ViTModel")
    whole, inputs = af.load(written["ViT classes"]), pictures.images(BY_NAME["ViT classes"])
    assert body.config.pool is None
    assert torch.equal(body(**inputs).last_hidden_state, whole(**inputs).last_hidden_state)


def test_squares_that_are_not_the_hidden_ones_are_no_target(written: dict[str, Path]) -> None:
    case = BY_NAME["ViT pixels, wide"]
    with pytest.raises(ConfigError, match=r"PixelHead\.stride=3 .* Patches\.patch=4"):
        af.load(written[case.name])(**pictures.hidden(case, pictures.images(case)))


def test_an_image_that_is_not_square() -> None:
    raw = {**SIZES, "model_type": "vit", "image_size": [12, 20], "patch_size": [4, 4]}
    model, provenance = read_config(raw)
    again, _ = write_config(model, provenance)
    assert (again["image_size"], again["patch_size"]) == ([12, 20], 4)
    x = torch.randn(2, 2, 12, 20)
    assert af.build(model, seed=0)(pixel_values=x).last_hidden_state.shape == (2, 16, 21)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"patch_size": [4, 5]}, "patches are squares"),
        ({"image_size": [4, 5, 6]}, "a size or a list of two"),
        ({"image_size": 3}, "at least one patch of 4 pixels"),
        ({"pooler_output_size": 8}, "pooler_output_size=8"),
        ({"hidden_act": "wavy"}, "hidden_act='wavy'"),
        ({"position_embedding": "rotary"}, "position_embedding='rotary'"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(field: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_config({**SIZES, "model_type": "vit", **field})


PUBLISHED = {  # the bare model with its pooler, as transformers counts it
    "vit-tiny": 5_561_472,
    "vit-small": 21_813_504,
    "vit-base": 86_389_248,
    "vit-large": 304_351_232,
    "vit-huge": 632_404_480,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_transformers_models_of_the_published_sizes(name: str) -> None:
    raw, _ = write_config(af.preset(name))
    with torch.device("meta"):
        theirs = AutoModel.from_config(ViTConfig(**raw))
    parameters = sum(p.numel() for p in theirs.parameters())
    assert af.count(af.preset(name)).parameters == parameters == PUBLISHED[name]


def test_a_fresh_model_is_saved_as_a_vit(tmp_path: Path) -> None:
    raw = {**SIZES, "model_type": "vit"}
    stack = read_config(raw)[0].reader
    for head in (ClassHead(("cat", "dog"), at="first"), None):
        model = af.build(EncoderOnly(stack, head), seed=0).eval()
        af.save(model, tmp_path / str(head is None))
        said = json.loads((tmp_path / str(head is None) / "config.json").read_text())
        assert said["model_type"] == "vit"
        inputs = {"pixel_values": torch.randn(2, 2, 20, 20)}
        again = af.load(tmp_path / str(head is None))
        assert torch.equal(again(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


def test_a_converted_vit_is_certified_on_images(written: dict[str, Path], tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    for file in written["ViT pixels"].iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (source / "preprocessor_config.json").write_text('{"size": 20}')
    certificate = convert(source, tmp_path / "out")
    assert certificate["sound"]
    outputs = {(seen["between"][1].split()[0], seen["output"]) for seen in certificate["outputs"]}
    assert {("transformers", "reconstruction"), ("allformer", "last_hidden_state")} <= outputs
    assert "20 × 20 pixels" in certificate["outputs"][0]["inputs"]
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()


def test_the_count_of_a_painter_is_what_is_built() -> None:
    model = EncoderOnly(read_config({**SIZES, "model_type": "vit"})[0].reader, PixelHead(4))
    built = af.build(model, device="meta")
    assert af.count(model).parameters == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    "more",
    [{"hidden_act": "gelu_fast"}, {"image_size": [20, 20], "patch_size": [4, 4]}, {}],
    ids=str,
)
def test_config_json_comes_back_in_its_own_words(more, tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    tiny = ViTConfig(**{**sizes, "image_size": 20, "patch_size": 4, "intermediate_size": 8, **more})
    ViTForImageClassification(tiny).save_pretrained(tmp_path / "theirs")
    model = af.load(tmp_path / "theirs")
    af.save(model, tmp_path / "ours")
    said = (tmp_path / "theirs" / "config.json").read_bytes()
    assert (tmp_path / "ours" / "config.json").read_bytes() == said
