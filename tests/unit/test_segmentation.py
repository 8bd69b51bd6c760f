"""The objective `segmentation`: its data, what is drawn for it, its losses and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import allformer as af
from allformer.checkpoint.weights import read_tensors
from allformer.data.pictures import open_pictures
from allformer.data.pictures.areas import Areas, areas_of
from allformer.data.pictures.picture import Picture
from allformer.errors import ConfigError, DataError
from allformer.images.augment.place import RandomPlace
from allformer.metrics.mean_iou import confusion, iou
from allformer.train.loop import train
from allformer.train.objectives.segmentation import Segmentation
from allformer.train.pictures.map_gallery import Reading
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from tests.drawn import write_idx

SCENES = {"of": "halves", "train": 48, "test": 8, "canvas": [16, 16], "objects": [1, 2]}
SAID = json.dumps(SCENES)
MODEL = {"patch": 4, "dim": 16, "heads": 2, "layers": 2, "feed": 32}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_idx(tmp_path_factory.mktemp("data") / "halves").parent / "scenes.json"
    path.write_text(SAID)
    return path


def recipe(path: Path, asked: dict[str, Any] | None = None, **more: Any) -> Recipe:
    return make_recipe({
        "objective": {"is": "segmentation", **(asked or {})},
        "data": {"path": str(path), "validation": "test", "augment": more.pop("augment", {})},
        "model": more.pop("model", MODEL),
        "optim": {"name": "adamw", "rate": 1e-2},
        "schedule": {"kind": "constant", "warmup": 2},
        "train": {"steps": 6, "batch_rows": 8, "validate_every": 3, "save_every": 3, **more},
        "log": {"every": 3, "tensorboard": False},
    })  # fmt: skip


def opened(asked: Recipe) -> tuple[Segmentation, Any]:
    """An objective with its data, and a fresh model for it."""
    objective = Segmentation(asked)
    objective.open()
    objective.encode(None, lambda line: None)
    return objective, af.build(objective.config(None), seed=0)


def batch_of(objective: Segmentation, key: int | None = None) -> Any:
    raw = objective.collate(objective.validation, np.arange(4))
    return objective.onto(raw._replace(key=key), "cpu")


# --- the whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"decoder": "linear", "cells": 2},
        {"decoder": "mask", "layers": 1},
        pytest.param(
            {"decoder": "queries", "layers": 1, "queries": 4, "points": 32},
            marks=pytest.mark.slow,
        ),
        {"task": "instance", "layers": 1, "queries": 4, "points": 32},
    ],
    ids=lambda asked: "-".join(map(str, asked.values())),
)
def test_a_run_is_a_checkpoint_that_segments(asked: dict[str, Any], data: Path, tmp_path: Path):
    result = train(recipe(data, asked), tmp_path / "run", device="cpu")
    row = result.rows[-1]
    assert 0 <= row["validation_mean_iou"] <= 1
    assert row["validation_nll"] > 0
    kept = Predictions.load(tmp_path / "run")
    assert kept is not None
    assert len(kept.pictures) == 8
    assert kept.pictures[0].found_mask is not None
    image = np.random.default_rng(0).integers(0, 255, (24, 20), dtype=np.uint8)
    found = af.segment(tmp_path / "run", image, threshold=0.0)
    assert found.ids.shape == (24, 20)
    labels = af.load(tmp_path / "run").config.head.labels
    assert labels[-1] == "3"
    assert (labels[0] == "background") is ("task" not in asked)


def test_a_run_goes_on_exactly_where_it_stopped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Segmentation, "_total", lambda self: 6.0)  # as if it had been interrupted
    asked = {"decoder": "queries", "layers": 1, "queries": 4, "points": 32}
    train(recipe(data, asked), tmp_path / "once", device="cpu")
    train(recipe(data, asked, steps=3), tmp_path / "again", device="cpu")
    train(None, tmp_path / "again", device="cpu", resume=True, overrides=["train.steps=6"])
    once, again = read_tensors(tmp_path / "once"), read_tensors(tmp_path / "again")
    assert all(torch.equal(x, again[name]) for name, x in once.items())


# --- losses and figures ---------------------------------------------------------------------------


def check_loss(data: Path) -> None:
    """Of each image the mean over its pixels that count, of a −100 nothing."""
    objective, model = opened(recipe(data))
    batch = batch_of(objective)
    batch.maps[0, :7] = -100
    loss, nll = objective.loss(model, batch)
    logits = model(pixel_values=batch.pixels).logits
    assert logits.shape == (4, 5, 16, 16)
    each = [F.cross_entropy(x[None], y[None]) for x, y in zip(logits, batch.maps, strict=True)]
    assert torch.allclose(loss, torch.stack(each).sum(), atol=1e-5)
    assert torch.equal(loss, nll)
    smooth, same = objective.loss(model, batch, smoothing=0.1)
    assert torch.equal(same, nll)
    assert smooth != loss


def test_the_loss_of_pixels(data: Path) -> None:
    check_loss(data)


def check_set(data: Path) -> None:
    """Masks of the objects that are seen, each with its class, and nothing of the background."""
    objective, model = opened(recipe(data, {"task": "instance", "layers": 1, "queries": 4}))
    batch = batch_of(objective)
    seen: dict[str, Any] = {}

    class Listening:
        config, training = model.config, False

        def call(self, given: dict[str, Any], dtype: Any = None) -> dict[str, Any]:
            seen.update(given)
            return {"loss": torch.tensor(2.0)}

    loss, _ = objective.loss(Listening(), batch)
    assert loss == 8.0  # of four images
    pictures = objective.validation.pictures
    for i in range(4):
        areas = areas_of(pictures[i])
        masks = np.stack([areas.ids == n for n in range(len(areas.classes))])
        assert np.array_equal(seen["mask_labels"][i].numpy(), masks)
        assert seen["class_labels"][i].tolist() == areas.classes.tolist()


def test_the_targets_of_a_set(data: Path) -> None:
    check_set(data)


def test_masking_is_annealed_layer_by_layer_and_ends_at_zero(data: Path) -> None:
    objective = Segmentation(recipe(data, {"task": "instance", "layers": 4}, steps=60))
    assert objective.masking().tolist() == [1.0] * 4
    objective.seen = 20  # a third: the first layer is let go, the second begins
    assert torch.allclose(objective.masking(), torch.tensor([0.0, 1.0, 1.0, 1.0]), atol=1e-4)
    objective.seen = 25
    half = 0.5**0.9
    assert torch.allclose(objective.masking(), torch.tensor([0.0, half, 1.0, 1.0]), atol=1e-4)
    objective.seen = 50
    assert objective.masking().max() < 1e-4


def check_iou() -> None:
    """Against the definition, class by class over all pixels; what does not count is left out."""
    make = torch.Generator().manual_seed(0)
    wanted = torch.randint(-1, 5, (3, 9, 7), generator=make)
    said = torch.randint(0, 6, (3, 9, 7), generator=make)
    wanted[wanted == 3] = 2  # a class that is nowhere but said
    total = confusion(said[:1], wanted[:1], 7) + confusion(said[1:], wanted[1:], 7)
    found, real = iou(total), wanted >= 0
    each = []
    for number in range(7):
        a, b = (said == number) & real, (wanted == number) & real
        if (a | b).any():
            each.append(((a & b).sum() / (a | b).sum()).item())
    assert found.mean == pytest.approx(sum(each) / len(each))
    assert found.classes[6] != found.classes[6]  # nan: nowhere
    assert found.accuracy == pytest.approx((said == wanted)[real].float().mean().item())


def test_mean_iou_is_over_the_whole_set() -> None:
    check_iou()
    assert iou(torch.zeros(3, 3)).mean == 0.0
    with pytest.raises(ConfigError, match="must be maps of one size"):
        confusion(torch.zeros(2, 3), torch.zeros(3, 2), 2)


def test_the_figures_of_a_set_are_those_of_its_maps(data: Path) -> None:
    objective, model = opened(recipe(data))
    examples = objective.validation
    found = objective.metrics(model.eval(), examples)
    maps, _ = examples.maps(np.arange(len(examples)))
    with torch.no_grad():
        logits = model(pixel_values=objective.normalised(torch.from_numpy(
            examples.pixels(np.arange(len(examples)))))).logits  # fmt: skip
    wanted = iou(confusion(logits.argmax(1), torch.from_numpy(maps), 5))
    assert found == {"mean_iou": wanted.mean, "pixel_accuracy": wanted.accuracy}


# --- what is drawn --------------------------------------------------------------------------------


def check_place() -> None:
    """An image and its map are moved alike; what was not there is −1."""
    make = torch.Generator().manual_seed(1)
    maps = torch.randint(0, 6, (8, 4, 5), generator=make)
    maps = maps.repeat_interleave(6, 1).repeat_interleave(6, 2)  # coarse: most pixels lie inside
    images = (maps[:, None] + 1) / 10
    for scale in ((1.0, 1.0), (1.5, 2.0), (0.4, 0.7)):
        moved, seen = RandomPlace(0.5, scale)(images, maps, torch.Generator().manual_seed(2))
        told = (moved[:, 0] * 10).round().long() - 1
        assert (told == seen).float().mean() > 0.8  # all but borders, where images are in between
        assert bool((seen == -1).any()) is (scale[0] < 1)
        assert not torch.equal(seen, maps)
        again = RandomPlace(0.5, scale)(images, maps, torch.Generator().manual_seed(2))
        assert torch.equal(again[1], seen)


def test_images_and_maps_are_moved_alike() -> None:
    check_place()


def test_in_validation_nothing_is_moved(data: Path) -> None:
    objective, _ = opened(recipe(data, augment={"flip": 1.0, "zoom": [0.5, 2.0]}))
    plain, moved, again = (batch_of(objective, key) for key in (None, 3, 3))
    raw = objective.collate(objective.validation, np.arange(4))
    assert torch.equal(plain.maps, raw.maps.long())
    assert not torch.equal(moved.maps, plain.maps)
    assert torch.equal(moved.pixels, again.pixels)
    assert objective.seen == 2


# --- data -----------------------------------------------------------------------------------------


def test_areas_of_masks_over_each_other() -> None:
    masks = np.zeros((2, 3, 4), bool)
    masks[0, :2], masks[1, 1:, 2:] = True, True
    areas = areas_of(Picture(np.zeros((3, 4, 1), np.uint8), classes=np.array([5, 7]), masks=masks))
    assert areas.ids.tolist() == [[0, 0, 0, 0], [0, 0, 1, 1], [-1, -1, 1, 1]]
    assert areas.labelled(1)[1].tolist() == [6, 6, 8, 8]
    crowded = Picture(
        np.zeros((3, 4, 1), np.uint8), classes=np.array([5, 7]), masks=masks,
        crowd=np.array([True, False]),
    )  # fmt: skip
    assert areas_of(crowded).labelled(1)[1].tolist() == [-1, -1, 8, 8]
    with pytest.raises(DataError, match="has no masks"):
        areas_of(Picture(np.zeros((3, 4, 1), np.uint8)))


def test_reading_gives_labels_or_segments() -> None:
    ids = np.array([[0, 1, 2, -1]])
    areas = Areas(ids, np.array([2, 0, 1]), np.array([True, False, True]))
    whole = Areas(ids, areas.classes, areas.things, whole=True)
    table = (10, -1, 12)
    assert Reading(table)(areas)[0].tolist() == [[12, 10, -1, -1]]
    assert Reading(table, 3)(areas)[0].tolist() == [[12, 10, -1, -1]]
    assert Reading(table, 3)(whole)[0].tolist() == [[12, 10, -1, 3]]
    found, classes = Reading(table, segments=True)(areas)
    assert (found.tolist(), classes.tolist()) == ([[0, 1, -1, -1]], [12, 10])
    found, classes = Reading(table, segments=True, things=True)(areas)
    assert (found.tolist(), classes.tolist()) == ([[0, -1, -1, -1]], [12])


def save(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


MAP = [[0, 1, 2, 255], [2, 2, 1, 0], [7, 7, 7, 0]]
GREY = np.zeros((3, 4, 3))


def test_maps_beside_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save(tmp_path / "images" / split / "a.jpg", GREY)
        save(tmp_path / "masks" / split / "a.png", MAP)
    with pytest.raises(DataError, match=r"classes\.txt is not there"):
        open_pictures(tmp_path)
    (tmp_path / "classes.txt").write_text("sky\ngrass\ncow\n")
    found = open_pictures(tmp_path)
    assert set(found) == {"train", "val"}
    assert found["train"].labels == ("sky", "grass", "cow")
    wanted = [[0, 1, 2, -1], [2, 2, 1, 0], [-1, -1, -1, 0]]
    assert areas_of(found["train"][0]).labelled().tolist() == wanted
    (tmp_path / "config.yaml").write_text("classes: {0: unlabeled, 2: cow, 7: sea}\n")
    found = open_pictures(tmp_path)
    assert found["val"].labels == ("cow", "sea")
    wanted = [[-1, -1, 0, -1], [0, 0, -1, -1], [1, 1, 1, -1]]
    assert areas_of(found["val"][0]).labelled().tolist() == wanted
    save(tmp_path / "masks" / "val" / "lost.png", MAP)
    with pytest.raises(DataError, match=r"lost\.png has no image of its name"):
        open_pictures(tmp_path)


def test_vocs_and_ade20ks_maps(tmp_path: Path) -> None:
    voc, ade = tmp_path / "voc", tmp_path / "ade"
    save(voc / "JPEGImages" / "a.jpg", GREY)
    palette = Image.fromarray(np.asarray(MAP, np.uint8), "P")
    palette.putpalette([i for n in range(256) for i in (255 - n, n, 3)])
    (voc / "SegmentationClass").mkdir(parents=True)
    palette.save(voc / "SegmentationClass" / "a.png")
    listed = voc / "ImageSets" / "Segmentation" / "train.txt"
    listed.parent.mkdir(parents=True)
    listed.write_text("a\n")
    found = open_pictures(voc, "maps")["train"]
    assert (found.labels[0], found.labels[7]) == ("background", "car")
    assert areas_of(found[0]).labelled().tolist() == [[0, 1, 2, -1], [2, 2, 1, 0], [7, 7, 7, 0]]
    save(ade / "images" / "training" / "a.jpg", GREY)
    save(ade / "annotations" / "training" / "a.png", MAP)
    (ade / "objectInfo150.txt").write_text("Idx\tName\n1\twall, side\n2\tsky\n")
    found = open_pictures(ade)["train"]
    assert found.labels == ("wall", "sky")
    assert areas_of(found[0]).labelled().tolist() == [[-1, 0, 1, -1], [1, 1, 0, -1], [-1] * 4]


def test_cocos_panoptic_layout(tmp_path: Path) -> None:
    save(tmp_path / "train2017" / "a.jpg", GREY)
    codes = np.array([[300, 300, 70_000, 0], [300, 5, 5, 0], [5, 5, 5, 5]])
    save(tmp_path / "annotations" / "panoptic_train2017" / "a.png",
         np.stack([codes % 256, codes // 256 % 256, codes // 65536], -1))  # fmt: skip
    said = {
        "categories": [{"id": 9, "name": "sky", "isthing": 0}, {"id": 3, "name": "cow",
                       "isthing": 1}],
        "annotations": [{"file_name": "a.png", "segments_info": [
            {"id": 300, "category_id": 9}, {"id": 70_000, "category_id": 3},
            {"id": 5, "category_id": 3, "iscrowd": 1}]}],
    }  # fmt: skip
    (tmp_path / "annotations" / "panoptic_train2017.json").write_text(json.dumps(said))
    found = open_pictures(tmp_path)["train"]
    areas = areas_of(found[0])
    assert found.labels == ("cow", "sky")
    assert areas.ids.tolist() == [[0, 0, 1, -1], [0, -1, -1, -1], [-1] * 4]
    assert areas.classes.tolist() == [1, 0]
    assert areas.things is not None
    assert areas.things.tolist() == [False, True]


def test_a_map_of_another_size_is_refused(data: Path, tmp_path: Path) -> None:
    save(tmp_path / "images" / "train" / "a.jpg", np.zeros((5, 4, 3)))
    save(tmp_path / "masks" / "train" / "a.png", MAP)
    (tmp_path / "classes.txt").write_text("sky\ngrass\ncow\n")
    there = {"path": str(tmp_path), "image": [8, 8], "validation": "train"}
    asked = make_recipe({"objective": "segmentation", "model": MODEL, "data": there})
    objective = Segmentation(asked)
    objective.open()
    with pytest.raises(DataError, match=r"a\.jpg has .* its map 4 × 3"):
        objective.encode(None, lambda line: None)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"task": "instance", "decoder": "linear"}, "is learnt by queries"),
        ({"decoder": "queries", "layers": 2}, r"objective\.layers=2 of the model's 2"),
    ],
)
def test_what_cannot_be_learnt_is_refused(asked: dict[str, Any], why: str, data: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        opened(recipe(data, asked))


def test_a_model_with_a_decoder_keeps_it(data: Path) -> None:
    tree = opened(recipe(data, {"decoder": "mask", "layers": 1}))[1].config
    again = recipe(data, model=json.loads(tree.to_json()))
    assert opened(again)[1].config.head == tree.head
    with pytest.raises(ConfigError, match="has a ClassMasks already"):
        opened(recipe(data, {"decoder": "linear"}, model=json.loads(tree.to_json())))
