"""DETR against transformers, with its own ResNet: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DetrConfig, DetrForObjectDetection, DetrModel, ResNetConfig

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.parity import found, zoo
from tests.parity.zoo import Case

SIZES = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 30, "decoder_ffn_dim": 26, "num_queries": 6,
}  # fmt: skip
NET = {"embedding_size": 4, "hidden_sizes": [8, 8, 12, 16], "depths": [1, 2, 1, 1]}


def make_config(net: dict[str, Any], **more: Any) -> DetrConfig:
    backbone = ResNetConfig(**{**NET, "out_features": ["stage4"], **net})
    return DetrConfig(use_timm_backbone=False, backbone_config=backbone, **{**SIZES, **more})


def detr(net: dict[str, Any] | None = None, **more: Any) -> Any:
    return functools.partial(make_config, net or {}, **more)


BASIC = {"layer_type": "basic", "downsample_in_first_stage": True, "num_channels": 2}
CASES = [
    Case("DETR", DetrForObjectDetection, detr(num_labels=5)),
    Case(
        "DETR, basic layers", DetrForObjectDetection,
        detr(BASIC, num_labels=3, num_channels=2, activation_function="gelu"),
    ),
    Case("DETR bare", DetrModel, detr({"downsample_in_bottleneck": True})),
    Case(
        "DETR, all layers scored", DetrForObjectDetection,
        detr(num_labels=5, decoder_layers=3, auxiliary_loss=True, dropout=0.0),
    ),
    Case("DETR bare, all layers normed", DetrModel, detr(auxiliary_loss=True)),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def make_norms_loud(model: Any) -> None:
    """The stored numbers of frozen norms, which are no parameters. The variance is that of loud
    kernels, lest attention saturates and its gradient is nothing but rounding."""
    make = torch.Generator().manual_seed(7)
    kernels = {n: p for n, p in model.named_parameters() if "convolution" in n}
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "normalization" not in name:
                continue
            noise = torch.rand(buffer.shape, generator=make, dtype=torch.float64)
            buffer.copy_(noise + 0.5 if name.endswith(("var", "weight")) else noise - 0.5)
            if name.endswith("var"):
                kernel = kernels[name.replace("normalization.running_var", "convolution.weight")]
                buffer.mul_(2 * kernel[0, 0].numel())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    for case in CASES:
        make_norms_loud(zoo.oracle(case))
    return zoo.write_all(CASES, tmp_path_factory.mktemp("detr"))


def images(case: Case, masked: bool) -> dict[str, Any]:
    """Three images, of which two are smaller than the sheet."""
    make = torch.Generator().manual_seed(1)
    channels = zoo.oracle(case).config.backbone_config.num_channels
    pixels = torch.randn(3, channels, 70, 97, generator=make, dtype=torch.float64)
    mask = torch.ones(3, 70, 97, dtype=torch.long)
    mask[0, 40:] = 0
    mask[2, :, 60:] = 0
    return {"pixel_values": pixels, **({"pixel_mask": mask} if masked else {})}


def check_detr_forward(name: str, path: Path, masked: bool = True) -> None:
    case = BY_NAME[name]
    with torch.no_grad():
        found.compare(case, af.load(path), zoo.oracle(case), images(case, masked))


@each
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_the_same_numbers(case: Case, masked: bool, written: dict[str, Path]) -> None:
    check_detr_forward(case.name, written[case.name], masked)


@pytest.mark.parametrize("name", ["DETR", "DETR, basic layers"])
def test_the_same_training(name: str, written: dict[str, Path], tmp_path: Path) -> None:
    case = BY_NAME[name]
    classes = zoo.oracle(case).config.num_labels
    inputs = {**images(case, True), "labels": found.labels(classes)}
    found.compare_training(case, written[name], tmp_path, inputs)


def test_the_same_training_with_losses_of_all_layers(
    written: dict[str, Path], tmp_path: Path
) -> None:
    case = BY_NAME["DETR, all layers scored"]
    inputs = {**images(case, True), "labels": found.labels(5)}
    found.compare_training(case, written[case.name], tmp_path, inputs, layers=True)


def test_a_fresh_config_says_whether_each_layer_is_normed(written: dict[str, Path]) -> None:
    for name, said in (("DETR", False), ("DETR, all layers scored", True)):
        raw, _ = write_config(af.load(written[name]).config)
        assert raw["auxiliary_loss"] is said


@each
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")


def test_a_config_that_says_nothing_of_timm_has_the_backbone_that_it_describes(
    written: dict[str, Path], tmp_path: Path
) -> None:
    old = json.loads((written["DETR"] / "config.json").read_text())
    del old["use_timm_backbone"]  # transformers 5 writes it where it was told so alone
    counted = {"model.backbone.conv_encoder.model.embedder.embedder.normalization": torch.tensor(9)}

    def with_counters(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {f"{name}.num_batches_tracked": x for name, x in counted.items()}

    new = zoo.rewrite(written["DETR"], tmp_path / "new", with_counters)
    (new / "config.json").write_text(json.dumps(old))
    check_detr_forward("DETR", new)


def test_presets_are_transformers_models_of_the_published_sizes() -> None:
    tree = af.preset("detr-resnet-50")
    raw, _ = write_config(tree)
    with torch.device("meta"):
        theirs = DetrForObjectDetection(DetrConfig(**raw))
    assert theirs.config.num_labels == 91
    learned = sum(p.numel() for p in theirs.parameters())
    assert af.count(tree).parameters == learned
    built = af.build(tree, device="meta")
    assert sum(p.numel() for p in built.parameters()) == learned


def test_a_converted_detr_is_certified_on_images(written: dict[str, Path], tmp_path: Path) -> None:
    certificate = convert(written["DETR"], tmp_path / "out")
    assert certificate["sound"]
    assert "96 × 128 pixels" in certificate["outputs"][0]["inputs"]
    assert {seen["output"] for seen in certificate["outputs"]} >= {"logits", "pred_boxes"}


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"use_timm_backbone": True}, "backbone of timm's.*no_timm"),
        ({"auxiliary_loss": "yes"}, "auxiliary_loss='yes', which must be true or false"),
        ({"position_embedding_type": "learned"}, "position_embedding_type='learned'"),
        ({"d_model": 26, "encoder_attention_heads": 2}, "dim=26"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(field: dict[str, Any], why: str) -> None:
    raw = {**SIZES, "model_type": "detr", "use_timm_backbone": False, **field}
    raw["backbone_config"] = {**NET, "model_type": "resnet", "out_features": ["stage4"]}
    with pytest.raises(CheckpointError, match=why):
        read_config(raw)


def test_inputs_that_do_not_fit_are_refused(written: dict[str, Path]) -> None:
    model = af.load(written["DETR"])
    with pytest.raises(ConfigError, match=r"pixel_mask=.*must be images × height × width"):
        model(pixel_values=torch.randn(1, 3, 64, 64).double(), pixel_mask=torch.ones(1, 64, 32))
    with pytest.raises(ConfigError, match="3 channels"):
        model(pixel_values=torch.randn(1, 1, 64, 64).double())
