"""CLIP against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)

import allformer as af
from allformer.config import Norm, TwoTowers
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case, rewrite

LAYERS = {"num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 34}
TEXT = LAYERS | {
    "vocab_size": 83, "hidden_size": 24, "max_position_embeddings": 13, "projection_dim": 10,
    "bos_token_id": 80, "eos_token_id": 81, "pad_token_id": 1,
}  # fmt: skip
VISION = LAYERS | {"hidden_size": 21, "image_size": 15, "patch_size": 4, "projection_dim": 10}
OLD_END = {"eos_token_id": 2, "bos_token_id": 0}
ODD = {"hidden_act": "gelu", "layer_norm_eps": 1e-2}


def text(**more: Any) -> Any:
    return functools.partial(CLIPTextConfig, **{**TEXT, **more})


def vision(**more: Any) -> Any:
    return functools.partial(CLIPVisionConfig, **{**VISION, **more})


def both(
    words: dict[str, Any] | None = None, sight: dict[str, Any] | None = None, **more: Any
) -> Any:
    inside = {"text_config": TEXT | (words or {}), "vision_config": VISION | (sight or {})}
    more = {"projection_dim": 14, "logit_scale_init_value": 2.0, **more}
    return functools.partial(CLIPConfig, **inside, **more)


TEXTS = [
    Case("clip text", CLIPTextModel, text(), labels="none"),
    Case("clip text, old end", CLIPTextModel, text(**OLD_END), labels="none"),
    Case("clip text, gelu", CLIPTextModel, text(**ODD), labels="none"),
    Case("clip text projected", CLIPTextModelWithProjection, text(), labels="none"),
]
IMAGES = [
    Case("clip vision", CLIPVisionModel, vision(), labels="none"),
    Case("clip vision, grey", CLIPVisionModel, vision(num_channels=1, **ODD), labels="none"),
    Case("clip vision projected", CLIPVisionModelWithProjection, vision(), labels="none"),
]
WHOLE = [
    Case("clip both", CLIPModel, both(), labels="none"),
    Case("clip both, old end", CLIPModel, both(OLD_END, ODD), labels="none"),
]
CLASSES = Case("clip classes", CLIPForImageClassification, both(num_labels=5), labels="class")
BY_NAME = {case.name: case for case in (*TEXTS, *IMAGES, *WHOLE, CLASSES)}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return zoo.write_all([*TEXTS, *IMAGES, *WHOLE, CLASSES], tmp_path_factory.mktemp("clip"))


def texts(side: str = "right", fill: int = 1) -> dict[str, Tensor]:
    """Rows of 13, 9, 4 and 2 tokens, each behind which the end token stands."""
    lengths, make = torch.tensor([13, 9, 4, 2])[:, None], torch.Generator().manual_seed(1)
    ids = torch.randint(3, 80, (4, 13), generator=make)
    place = torch.arange(13)[None]
    keep = place < lengths
    ids = ids.masked_fill(place == lengths - 1, 81).masked_fill(~keep, fill)
    return {"input_ids": ids} if side == "none" else {"input_ids": ids, "attention_mask": keep + 0}


def images(rows: int = 4, size: tuple[int, int] = (15, 15), channels: int = 3) -> Tensor:
    make = torch.Generator().manual_seed(2)
    return torch.randn(rows, channels, *size, generator=make, dtype=torch.float64)


def compare(case: Case, ours: Any, theirs: Any, inputs: dict[str, Any], *names: str) -> None:
    mine, reference = zoo.run_both(case, ours, theirs, inputs)
    for name in names:
        wanted = getattr(reference, name)
        assert getattr(mine, name).shape == wanted.shape
        zoo.close(getattr(mine, name), wanted, case, name)


def check_text(case: Case, path: Path) -> None:
    """States and the pooled one, with and without a mask, filled up with end tokens too."""
    ours, theirs = af.load(path), zoo.oracle(case)
    for side, fill in (("right", 1), ("right", 81), ("none", 1), ("none", 81)):
        zoo.compare(case, ours, theirs, inputs := texts(side, fill))
        if "projected" in case.name:
            compare(case, ours, theirs, inputs, "text_embeds")


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.name)
def test_a_text_tower_agrees(case: Case, disk: dict[str, Path]) -> None:
    check_text(case, disk[case.name])


def check_vision(case: Case, path: Path) -> None:
    """States and the pooled one, of images of the usual and of other sizes."""
    ours, theirs = af.load(path), zoo.oracle(case)
    last = "image_embeds" if "projected" in case.name else "pooler_output"
    channels = theirs.config.num_channels
    compare(
        case, ours, theirs, {"pixel_values": images(channels=channels)}, last, "last_hidden_state"
    )
    for size in ((15, 15), (13, 22), (8, 8), (24, 24)):
        inputs = {"pixel_values": images(2, size, channels), "interpolate_pos_encoding": True}
        compare(case, ours, theirs, inputs, last, "last_hidden_state")


@pytest.mark.parametrize("case", IMAGES, ids=lambda case: case.name)
def test_a_vision_tower_agrees(case: Case, disk: dict[str, Path]) -> None:
    check_vision(case, disk[case.name])


def test_classes_of_images_agree(disk: dict[str, Path]) -> None:
    ours, theirs = af.load(disk["clip classes"]), zoo.fresh_oracle(CLASSES)
    inputs = {"pixel_values": images(), "labels": torch.tensor([0, 4, 2, 2])}
    compare(CLASSES, ours, theirs, inputs, "logits", "loss")
    zoo._compare_gradients(CLASSES, ours, theirs, inputs)


SCORES = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")


def check_both(case: Case, path: Path) -> None:
    """Scores and vectors, of as many texts as images and of others."""
    ours, theirs = af.load(path), zoo.oracle(case)
    for side in ("right", "none"):
        compare(case, ours, theirs, texts(side) | {"pixel_values": images(3)}, *SCORES)
    larger = {"pixel_values": images(1, (21, 17)), "interpolate_pos_encoding": True}
    compare(case, ours, theirs, texts() | larger, *SCORES)


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_both_towers_agree(case: Case, disk: dict[str, Path]) -> None:
    check_both(case, disk[case.name])


def check_contrast(case: Case, path: Path) -> None:
    """The contrastive loss, every gradient, that of the scale among them."""
    ours, theirs = af.load(path), zoo.fresh_oracle(case)
    inputs = texts() | {"pixel_values": images(), "return_loss": True}
    zoo._compare_gradients(case, ours, theirs, inputs)
    assert ours.head.scale.grad


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_loss_and_gradients_agree(case: Case, disk: dict[str, Path]) -> None:
    check_contrast(case, disk[case.name])


@pytest.mark.parametrize("case", [*TEXTS, *IMAGES, *WHOLE, CLASSES], ids=lambda case: case.name)
def test_files_round_trip(case: Case, disk: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, disk[case.name], tmp_path / "again")


def test_a_tower_is_read_from_a_file_of_both(disk: dict[str, Path], tmp_path: Path) -> None:
    whole = af.load(disk["clip both"])
    given = {"CLIPTextModel": texts(), "CLIPVisionModel": {"pixel_values": images()}}
    for name, inputs in given.items():
        tower = af.load(disk["clip both"], architecture=name)
        ((_, states),) = whole.states(**inputs).items()
        assert torch.equal(tower(**inputs).last_hidden_state, states)
        af.save(tower, tmp_path / name)
        kind = json.loads((tmp_path / name / "config.json").read_text())["model_type"]
        assert kind == ("clip_text_model" if "Text" in name else "clip_vision_model")
        assert torch.equal(af.load(tmp_path / name)(**inputs).last_hidden_state, states)


def test_position_ids_and_prefixes_of_old_files_are_read(
    disk: dict[str, Path], tmp_path: Path
) -> None:
    def older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        out = {f"text_model.{name}": x for name, x in tensors.items()}
        return out | {"text_model.embeddings.position_ids": torch.arange(13)[None]}

    ours = af.load(rewrite(disk["clip text"], tmp_path / "old", older))
    zoo.compare(TEXTS[0], ours, zoo.oracle(TEXTS[0]), texts())
    wrong = {"text_model.embeddings.position_ids": torch.arange(13)[None] + 1}
    with pytest.raises(CheckpointError, match="position_ids"):
        af.load(rewrite(disk["clip text"], tmp_path / "bad", lambda x: older(x) | wrong))


def test_legacy_dicts_of_the_towers_count_before_the_configs() -> None:
    raw = json.loads(both()().to_json_string())
    raw["text_config"] = {**raw["text_config"], "hidden_size": 48, "layer_norm_eps": 0.5}
    raw |= {"text_config_dict": TEXT, "vision_config_dict": None}
    theirs = CLIPConfig(**raw)
    tree, known = read_config(raw | {"model_type": "clip"})
    assert isinstance(tree, TwoTowers)
    assert tree.text.dim == theirs.text_config.hidden_size == 24
    assert tree.text.final_norm == Norm("layer", theirs.text_config.layer_norm_eps) == Norm()
    assert write_config(tree, known)[0]["text_config_dict"] == TEXT
    assert read_config(write_config(tree)[0])[0] == tree


def test_what_a_tower_does_not_know_is_refused() -> None:
    raw = {"model_type": "clip", "vision_config": {"patch_size": 16, "use_moon": 3}}
    with pytest.raises(CheckpointError, match="use_moon"):
        read_config(raw)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("clip-vit-base-patch32", 151_277_313), ("clip-vit-large-patch14", 427_616_513)],
)
def test_presets_have_the_published_sizes(name: str, parameters: int) -> None:
    tree = af.preset(name)
    assert af.count(tree).parameters == parameters
    assert sum(p.numel() for p in af.build(tree, device="meta").parameters()) == parameters


def test_one_tower_alone_answers_and_misuse_is_refused(disk: dict[str, Path]) -> None:
    model = af.load(disk["clip both"])
    pictures, words = {"pixel_values": images(2)}, texts()
    seen, read = model(**pictures), model(**words)
    assert list(seen) == ["image_embeds"]
    assert list(read) == ["text_embeds"]
    whole = model(**pictures, **words)
    assert torch.equal(whole.image_embeds, seen.image_embeds)
    with pytest.raises(ConfigError, match="4 texts and 2 images"):
        model(**pictures, **words, return_loss=True)
    with pytest.raises(ConfigError, match="neither"):
        model()
    with pytest.raises(ConfigError, match="compares"):
        model(**words, return_loss=True)
    with pytest.raises(ConfigError, match="without the token 81"):
        model(input_ids=words["input_ids"].clamp_max(79))


def test_padding_on_the_left_changes_no_end(disk: dict[str, Path]) -> None:
    """transformers reads the first end token, which is padding then; here it is the text's own."""
    model, inputs = af.load(disk["clip text projected"]), texts(fill=81)
    ids = inputs["input_ids"][1:2, :9]
    filled = torch.cat([torch.full((1, 4), 81), ids], 1)
    keep = torch.cat([torch.zeros(1, 4), torch.ones(1, 9)], 1).long()
    where = torch.cat([torch.zeros(1, 4), torch.arange(9)[None]], 1).long()
    plain = model(input_ids=ids).text_embeds
    padded = model(input_ids=filled, attention_mask=keep, position_ids=where).text_embeds
    assert torch.allclose(plain, padded, atol=1e-12)
