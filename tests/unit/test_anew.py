"""Scenes composed anew: by the rules of those that stay, and told as they are seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from allformer.data.pictures import Part
from allformer.data.pictures.outlines import box_of
from allformer.data.pictures.scenes import Scenes
from allformer.errors import ConfigError, DataError
from allformer.images.augment.compose import Compose, Composed
from allformer.train.objectives.detection import Detection
from allformer.train.objectives.segmentation import Segmentation
from allformer.train.recipe import make_recipe

CANVAS, COUNT, VISIBLE, INK = (24, 32), (2, 4), 0.6, 16
OBJECTS = np.random.default_rng(0).integers(0, 256, (9, 10, 12), dtype=np.uint8)
OBJECTS[:, :2] = 3  # less than ink
NUMBERS = np.arange(9) % 3


def composed(seed: int = 0, rows: int = 40, canvas: tuple[int, int] = CANVAS) -> Composed:
    how = Compose(torch.from_numpy(OBJECTS), canvas, COUNT, VISIBLE, INK)
    return how(rows, torch.Generator().manual_seed(seed))


def check_composed() -> None:
    """What is seen of each object are its own pixels, enough of them, in its box."""
    scenes = composed()
    counts = (scenes.chosen >= 0).sum(1)
    assert set(counts.tolist()) <= {1, 2, 3, 4}
    assert counts.double().mean() > 2.2
    covered = 0
    for image, owner, chosen, boxes in zip(*scenes, strict=True):
        assert not image[0][owner < 0].any()
        for k, number in enumerate(chosen.tolist()):
            seen = (owner == k).numpy()
            if number < 0:
                assert not seen.any()
                continue
            stamp = OBJECTS[number]
            ink = stamp >= INK
            assert seen.sum() >= math.ceil(VISIBLE * ink.sum())
            covered += int(seen.sum() < ink.sum())
            assert set(image[0][torch.from_numpy(seen)].tolist()) <= set(stamp[ink].tolist())
            left, top, right, below = box_of(seen)
            middle = [
                (left + right) / 64,
                (top + below) / 48,
                (right - left) / 32,
                (below - top) / 24,
            ]
            assert np.allclose(boxes[k], middle, atol=1e-6)
    assert covered > 10  # they do lie over each other


def test_what_is_seen_of_an_object_are_its_pixels_in_its_box() -> None:
    check_composed()


def test_a_seed_says_which_scenes() -> None:
    first, again, other = composed(1), composed(1), composed(2)
    assert torch.equal(first.pixels, again.pixels)
    assert not torch.equal(first.pixels, other.pixels)


def test_where_no_place_is_left_there_are_fewer() -> None:
    scenes = composed(canvas=(10, 12))  # room for one
    assert ((scenes.chosen >= 0).sum(1) <= 2).all()


def _recipe(kind: str, **data: Any) -> Any:
    return make_recipe({
        "objective": kind,
        "data": {"path": "scenes", "augment": {"anew": True}, **data},
        "model": {"patch": 8, "dim": 16, "heads": 2, "layers": 1, "feed": 16},
        "train": {"steps": 2, "batch_rows": 8},
    })  # fmt: skip


def _opened(objective: Any, pictures: Any = None) -> Any:
    scenes = Scenes(OBJECTS, NUMBERS, ("a", "b", "c"), 20, CANVAS, COUNT, VISIBLE, INK)
    objective.open({"train": pictures or scenes, "val": scenes})
    objective.encode(None, lambda line: None)
    return objective


def _ready(objective: Any, key: int | None, count: int = 8) -> Any:
    batch = objective.collate(objective.examples(0), np.arange(count), objective.frame())
    return objective.onto(batch._replace(key=key), "cpu")


def _composed(objective: Any, seed: int) -> Any:
    anew = objective.anew
    return anew.apply(anew.draw(8, torch.Generator().manual_seed(seed)), torch.device("cpu"))


def test_a_detector_learns_from_scenes_that_were_not_there() -> None:
    objective = _opened(Detection(_recipe("detection")))
    plain, once, again, other = (_ready(objective, key) for key in (None, 5, 5, 6))
    assert torch.equal(once.pixels, again.pixels)
    assert not torch.equal(once.boxes, other.boxes)
    assert once.boxes.shape == plain.boxes.shape == (8, 4, 4)
    scenes, classes = _composed(objective, 5)
    assert torch.equal(once.classes, classes)
    kept = scenes.chosen >= 0
    assert classes[kept].tolist() == NUMBERS[scenes.chosen[kept]].tolist()
    assert (classes[~kept] == -1).all()


def test_a_segmenter_too_and_filler_does_not_count() -> None:
    objective = _opened(Segmentation(_recipe("segmentation")))
    assert objective.labels == ("background", "a", "b", "c")
    batch = _ready(objective, 5, count=6)
    scenes, classes = _composed(objective, 5)
    wanted = torch.zeros_like(scenes.owner)
    for k in range(4):
        here = scenes.owner == k
        wanted = torch.where(here, classes[:, k, None, None], wanted)
    assert torch.equal(batch.maps[:6], wanted[:6])
    assert (batch.maps[6:] == -100).all()


@pytest.mark.parametrize("kind", [Detection, Segmentation])
def test_scenes_to_train_on_may_be_fuller_than_those_to_look_at(kind: Any) -> None:
    data = {"augment": {"anew": True, "objects": [5, 6]}}
    objective = _opened(kind(_recipe(kind.name, **data)))
    _, classes = _composed(objective, 5)
    assert classes.shape == (8, 6)
    assert (classes >= 0).sum(1).max() > COUNT[1]
    assert _ready(objective, 5).classes.shape == (8, 6)
    assert objective.anew.scenes.objects == COUNT
    for wrong in ({"objects": [5, 6]}, {"anew": True, "objects": [3]}):
        with pytest.raises(ConfigError, match=r"data\.augment\.objects"):
            _recipe(kind.name, augment=wrong)


def test_of_pictures_that_are_no_scenes_nothing_is_composed() -> None:
    scenes = Scenes(OBJECTS, NUMBERS, ("a", "b", "c"), 20, CANVAS, COUNT, VISIBLE, INK)
    objective = _opened(Detection(_recipe("detection")), Part(scenes, range(5)))
    with pytest.raises(DataError, match=r"data\.augment\.anew=True"):
        _ready(objective, 5)
