"""DeiT against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModel,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTForMaskedImageModeling,
    DeiTModel,
)

import allformer as af
from allformer.config import EncoderOnly, Patches, TeacherHead
from allformer.errors import CheckpointError, ConfigError
from allformer.families import FAMILIES
from allformer.families.config_json import read_config, write_config
from tests.parity import pictures, zoo
from tests.parity.zoo import Case

SIZES = {
    "hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34,
    "image_size": 20, "patch_size": 4, "encoder_stride": 4, "num_channels": 2,
}  # fmt: skip


def deit(**more: Any) -> Any:
    return functools.partial(DeiTConfig, **{**SIZES, **more})


CASES = [
    Case("DeiT", DeiTModel, deit(layer_norm_eps=1e-2)),
    Case("DeiT without pooler", DeiTModel, deit(qkv_bias=False), options={
        "add_pooling_layer": False, "use_mask_token": True}),
    Case("DeiT classes", DeiTForImageClassification, deit(num_labels=5, hidden_act="relu")),
    Case("DeiT teacher", DeiTForImageClassificationWithTeacher, deit(num_labels=5)),
    Case("DeiT pixels", DeiTForMaskedImageModeling, deit(hidden_dropout_prob=0.1)),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("deit"))


@each
def test_the_same_numbers(case: Case, written: dict[str, Path]) -> None:
    with torch.no_grad():
        ours = af.load(written[case.name])
        pictures.compare(case, ours, zoo.oracle(case), pictures.images(case))


@pytest.mark.parametrize("name", ["DeiT", "DeiT teacher"])
@pytest.mark.parametrize("size", [(28, 12), (31, 33)])
def test_the_same_numbers_of_other_sizes(
    name: str, size: tuple[int, int], written: dict[str, Path]
) -> None:
    case = BY_NAME[name]
    inputs = {**pictures.images(case, size), "interpolate_pos_encoding": True}
    with torch.no_grad():
        pictures.compare(case, af.load(written[name]), zoo.oracle(case), inputs)


def test_the_same_training(written: dict[str, Path], tmp_path: Path) -> None:
    case = BY_NAME["DeiT classes"]
    inputs = pictures.labelled(case, pictures.images(case))
    pictures.compare_training(case, written[case.name], tmp_path, inputs)


def test_the_same_training_to_paint(written: dict[str, Path], tmp_path: Path) -> None:
    case = BY_NAME["DeiT pixels"]
    inputs = pictures.hidden(case, pictures.images(case))
    pictures.compare_training(case, written[case.name], tmp_path, inputs)


def test_half_of_the_loss_is_the_teachers(written: dict[str, Path]) -> None:
    """transformers has no loss here: the formula of the paper, equation 3."""
    model, x = af.load(written["DeiT teacher"]), pictures.images(BY_NAME["DeiT teacher"])
    labels, told = torch.tensor([0, 3, 1]), torch.tensor([4, 3, 2])
    out = model(**x, labels=labels, teacher_labels=told)
    wanted = F.cross_entropy(out.cls_logits, labels) / 2
    wanted = wanted + F.cross_entropy(out.distillation_logits, told) / 2
    assert torch.allclose(out.loss, wanted, atol=1e-12)
    assert model(**x).loss is None
    with pytest.raises(ConfigError, match="teacher_labels has 5"):
        model(**x, labels=labels, teacher_labels=told + 1)


@each
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")


def test_two_heads_need_two_tokens() -> None:
    body = read_config({**SIZES, "model_type": "deit"})[0].reader
    model = EncoderOnly(body, TeacherHead(("cat", "dog")))
    built = af.build(model, device="meta")
    assert af.count(model).parameters == sum(p.numel() for p in built.parameters())
    vit = read_config({**SIZES, "model_type": "vit"})[0].reader
    assert isinstance(vit.source, Patches)
    with pytest.raises(ConfigError, match="distilled=True"):
        EncoderOnly(vit, TeacherHead(("cat", "dog")))


def test_a_deit_is_no_vit_and_a_vit_no_deit() -> None:
    for name, other in (("deit", "vit"), ("vit", "deit")):
        model = read_config({**SIZES, "model_type": name})[0]
        assert write_config(model)[0]["model_type"] == name
        with pytest.raises(CheckpointError, match="distillation token"):
            write_config(model, family=other)


PUBLISHED = {  # with both heads over 1000 classes, as published
    "deit-tiny": 5_910_800,
    "deit-small": 22_436_432,
    "deit-base": 87_338_192,
    "deit-base-384": 87_630_032,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_transformers_models_of_the_published_sizes(name: str) -> None:
    raw, _ = write_config(af.preset(name))
    with torch.device("meta"):
        theirs = AutoModel.from_config(DeiTConfig(**raw))
    assert af.count(af.preset(name)).parameters == sum(p.numel() for p in theirs.parameters())
    taught = EncoderOnly(af.preset(name).reader, TeacherHead(tuple(map(str, range(1000)))))
    assert af.count(taught).parameters == PUBLISHED[name]
    assert name in FAMILIES["deit"].presets
