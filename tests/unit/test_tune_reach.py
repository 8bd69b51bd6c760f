"""`allformer tune` beyond text: pictures and recordings, with any method, opened by their verbs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from allformer.errors import ConfigError
from allformer.families import preset
from allformer.train.loop import train
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.room import check_length, room_of, within
from allformer.train.tune_recipe import tune_recipe
from tests.drawn import halves, write_idx
from tests.unit.test_transcription import small_whisper, tones
from tests.unit.test_tune_verb import call

QUICK = ["--set", "train.epochs=1", "--set", "train.batch_rows=16", "--set",
         "log.tensorboard=false", "--device", "cpu"]  # fmt: skip
BRIEF = {"train": {"steps": 2, "batch_rows": 16, "average": 1}, "log": {"tensorboard": False}}


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    """A small ViT with four classes, and its pictures beside it."""
    folder = tmp_path_factory.mktemp("vit")
    data = write_idx(folder / "halves", 64, 32)
    recipe = {
        "objective": "image-classification", "data": {"path": str(data), "hold_out": 16},
        "model": {"patch": 4, "dim": 16, "heads": 2, "layers": 2, "feed": 32}, **BRIEF,
    }  # fmt: skip
    train(make_recipe(recipe), folder / "base", device="cpu")
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Path:
    """A small Whisper of transformers', and recordings beside it."""
    folder = tmp_path_factory.mktemp("whisper")
    tones(folder / "tones", {"train": 4, "val": 2})
    return small_whisper(folder, seconds=30, room=64)


def two_folders(folder: Path) -> Path:
    """Pictures of two classes that the base has never heard of, in files larger than it reads."""
    pixels, labels = halves(40, seed=5)
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        here = folder / "train" / ("flat" if label < 2 else "steep")
        here.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((20, 16)).save(here / f"{i}.png")
    return folder


@pytest.mark.every(6)
@pytest.mark.parametrize("method", ["lora", "bitfit", "ia3", "bottleneck", "prefix", "full"])
def test_pictures_of_other_classes_are_learnt_under_a_new_head(method, vit, tmp_path):
    data, run = two_folders(tmp_path / "data"), tmp_path / "run"
    call("tune", vit / "base", "--data", data, "--task", "images", "--new-head", "--method",
         method, "--out", run, *QUICK)  # fmt: skip
    picture = next((data / "train" / "flat").iterdir())
    told = json.loads(call("classify-image", run, picture, "--json").stdout.splitlines()[-1])
    assert told["labels"][0]["label"] in ("flat", "steep")
    assert (run / "adapter_config.json").exists() == (method != "full")
    recipe = read_recipe(run / "recipe.yaml")
    assert recipe.options.labels == ("flat", "steep")
    assert recipe.data.image == (8, 8)


def test_pictures_of_labels_that_the_head_has_not_are_refused_with_the_way_out(vit, tmp_path):
    result = call("tune", vit / "base", "--data", two_folders(tmp_path / "data"), "--task",
                  "images", "--out", tmp_path / "run", *QUICK, status=1)  # fmt: skip
    assert "labels that the model has not: flat, steep; it has 0, 1, 2, 3" in str(result.exception)
    assert "--new-head" in str(result.exception)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.every(4)
@pytest.mark.parametrize("method", ["lora", "bottleneck", "bitfit", "prefix"])
def test_recordings_are_learnt_beside_frozen_weights(method, whisper, tmp_path):
    run = tmp_path / "run"
    call("tune", whisper, "--data", whisper.parent / "tones", "--task", "transcribe",
         "--method", method, "--out", run, *QUICK)  # fmt: skip
    assert read_recipe(run / "recipe.yaml").train.best == "wer"
    assert (run / "adapter_model.safetensors").is_file()
    assert json.loads((run / "adapter_config.json").read_text())["base_model_name_or_path"]
    call("transcribe", whisper.parent / "tones" / "clips" / "val0.wav", "--model", run)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detect", "segment"])
def test_objects_are_learnt_on_a_body_that_knew_classes(task, vit, tmp_path):
    pytest.importorskip("scipy")
    scenes = {"of": str(vit / "halves"), "train": 48, "test": 8, "canvas": [16, 16],
              "objects": [1, 2]}  # fmt: skip
    (tmp_path / "scenes.json").write_text(json.dumps(scenes))
    Image.fromarray(halves(1)[0][0]).save(tmp_path / "one.png")
    asked = ("--data", tmp_path / "scenes.json", "--task", task, "--new-head", *QUICK)
    body = vit / "base"
    if task == "detect":  # which wants queries, and a body that knew classes has none
        result = call("tune", body, "--out", tmp_path / "no", *asked, status=1)
        assert "has no queries that look for objects; give a YOLOS" in str(result.exception)
        body = tmp_path / "base"
        data = {"path": str(tmp_path / "scenes.json")}
        sizes = {"patch": 4, "dim": 16, "heads": 2, "layers": 2, "feed": 32}
        train(make_recipe({"objective": {"is": "detection", "queries": 4}, "data": data,
                           "model": sizes, **BRIEF}), body, device="cpu")  # fmt: skip
    call("tune", body, "--out", tmp_path / "run", *asked)
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file()
    call(task, tmp_path / "run", tmp_path / "one.png", "--out", tmp_path / "found")


def test_the_language_heard_is_the_objectives_and_pictures_have_no_length():
    recipe = tune_recipe("m", "clips", task="transcribe", source="zh")
    assert recipe.options.language == "zh"
    assert (recipe.train.batch_rows, recipe.train.batch_tokens) == (32, 1 << 20)
    with pytest.raises(ConfigError, match="--length 9 is of texts, and --task images reads pict"):
        tune_recipe("m", "pictures", task="images", length=9)
    with pytest.raises(ConfigError, match=r"--new-head: --task sft keeps .* classify, tag, answer"):
        tune_recipe("m", "chats.jsonl", task="sft", new_head=True)


def test_qlora_is_lora_on_a_base_in_few_bits():
    recipe = tune_recipe("m", "chats.jsonl", task="sft", method="qlora", settings={"rank": 4})
    assert recipe.model.quantise == "int4"
    assert (recipe.name, recipe.tune.told, recipe.tune.methods[0].alpha) == ("sft-qlora", "lora", 8)
    recipe = tune_recipe("m", "chats.jsonl", task="sft", method="bitfit", quantise="int8")
    assert (recipe.model.quantise, recipe.tune.told) == ("int8", "bitfit")
    with pytest.raises(ConfigError, match=r"model\.quantise='int3' is not a choice; try"):
        tune_recipe("m", "chats.jsonl", task="sft", quantise="int3")


def test_what_stands_before_a_text_takes_of_its_positions():
    tree = preset("gpt2")
    for method, room in (("prefix", 1004), ("prompt", 1004), ("lora", 1024)):
        recipe = tune_recipe("m", "chats.jsonl", task="sft", method=method)
        assert room_of(recipe, tree) == room
        assert within(recipe, tree).data.max_length == room
    recipe = tune_recipe("m", "a.jsonl", task="translate", method="prefix", length=64)
    assert within(recipe, preset("bart-base")).data.max_length == 64
    assert room_of(recipe, preset("t5-small")) is None  # numbers distances, however far
    with pytest.raises(ConfigError, match=r"max_length=1024 is more than the model's 1004 posit"):
        check_length(tune_recipe("m", "a", task="sft", method="prefix"), tree, 1024)
