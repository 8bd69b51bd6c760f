"""Drawn shapes: what is said of a picture is what is in it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from allformer.data.pictures import open_pictures
from allformer.data.pictures.shapes import write_shapes
from allformer.data.shapes import (
    CHINESE,
    COLOURS,
    FIGURES,
    KINDS,
    Drawing,
    Figure,
    Shapes,
    draw,
    draw_one,
)
from allformer.errors import DataError


def test_a_picture_is_a_function_of_its_seed_and_number():
    first, again = (Shapes(9, side=48, most=3, seed=5) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one.pixels, other.pixels)
        assert one.figures == other.figures
    others = Shapes(9, side=48, most=3, seed=6)
    assert not any(np.array_equal(a.pixels, b.pixels) for a, b in zip(first, others, strict=True))
    assert np.array_equal(first[-1].pixels, first[8].pixels)
    assert [d.figures for d in first[2:4]] == [first[2].figures, first[3].figures]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_colour_inside_and_the_ground_outside(kind: str) -> None:
    found = draw([Figure(kind, "blue", 0.5, 0.5, 0.4)], 40)
    (mask,) = found.masks
    assert 0.1 < mask.mean() < 0.6
    inside = found.pixels[mask].astype(int)
    assert (abs(inside - COLOURS["blue"]).max(1) == 0).mean() > 0.6  # the rest is its edge
    assert (found.pixels[0] == 255).all()
    assert np.array_equal(found.label_map() == KINDS.index(kind), mask)
    assert len(np.unique(found.pixels.reshape(-1, 3), axis=0)) > 3  # smooth, not stairs


def test_no_two_kinds_look_alike():
    masks = [draw([Figure(kind, "red", 0.5, 0.5, 0.4)], 40).masks[0] for kind in FIGURES]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert (one & other).sum() < 0.9 * (one | other).sum()


def test_boxes_are_tight_and_the_one_in_front_hides_what_is_behind():
    back, front = Figure("square", "red", 0.3, 0.5, 0.25), Figure("square", "blue", 0.5, 0.5, 0.25)
    found = draw([back, front], 40)
    assert not (found.masks[0] & found.masks[1]).any()
    left, top, right, bottom = found.boxes[0]
    assert (left, top, bottom) == (4, 12, 28)
    assert right == 12  # where the blue one begins
    assert found.pixels[20, 20].tolist() == list(COLOURS["blue"])


def test_scenes_have_boxes_for_all_that_they_show():
    scenes = Shapes(30, side=64, most=4)
    assert {len(scene.figures) for scene in scenes} == {1, 2, 3, 4}
    for scene in scenes:
        assert scene.masks.any((1, 2)).all()
        assert len(scene.boxes) == len(scene.labels) == len(scene.figures)
        assert (scene.boxes[:, :2] < scene.boxes[:, 2:]).all()
        assert scene.boxes.min() >= 0
        assert scene.boxes.max() <= 64


def test_captions_name_all_in_both_languages():
    star, ring = Figure("star", "red", 0.8, 0.5, 0.1), Figure("ring", "orange", 0.2, 0.5, 0.1)
    assert star.caption() == "a red star"
    assert star.caption("zh") == "一个红色的星形"
    assert ring.caption() == "an orange ring"
    scene = Drawing(np.zeros((8, 8, 3), np.uint8), (star, ring, star), np.ones((3, 8, 8), bool))
    assert scene.caption() == "an orange ring, a red star and a red star"
    assert scene.caption("zh") == "一个橙色的圆环、一个红色的星形和一个红色的星形"
    assert set(CHINESE) == {*FIGURES, *COLOURS}


def test_the_first_kinds_can_be_had_alone():
    for shapes in (Shapes(20, kinds=2), Shapes(20, side=48, most=3, kinds=2)):
        assert {f.kind for one in shapes for f in one.figures} == {"ring", "moon"}
    with pytest.raises(DataError, match=r"Shapes\.kinds=9 must be from 1 to 8"):
        Shapes(3, kinds=9)


def test_plain_shapes_lie_in_the_middle_of_white():
    found = draw_one(0, 3, plain=True)
    assert (found.pixels[[0, -1]] == 255).all()
    left, _, right, _ = found.boxes[0]
    assert abs(left + right - 32) <= 8  # a moon is not the same on both sides


def test_impossible_shapes_are_refused():
    with pytest.raises(DataError, match=r"Shapes\.most=0 must be at least 1"):
        Shapes(3, most=0)
    with pytest.raises(IndexError, match="no number 3"):
        Shapes(3)[3]


# --- as data of a recipe --------------------------------------------------------------------------


def test_a_file_of_numbers_is_a_set_of_pictures(tmp_path):
    file = write_shapes(tmp_path / "shapes.json", train=6, val=3, side=24, most=3)
    splits = open_pictures(file)
    assert {name: len(part) for name, part in splits.items()} == {"train": 6, "val": 3}
    part = splits["train"]
    assert part.labels == KINDS
    assert part.pixels is not None
    assert part.pixels.shape == (6, 24, 24, 3)
    for i in range(6):
        one = part[i]
        assert one.boxes is not None
        assert one.masks is not None
        assert len(one.boxes) == len(one.classes) == len(one.masks) >= 1
        assert (one.label is None) == (len(one.boxes) > 1)
        assert one.captions[0].startswith("a")
        assert one.captions[1].startswith("一个")
    assert not any((part.pixels[i] == splits["val"].pixels[0]).all() for i in range(6))


@pytest.mark.parametrize("odd", [{"sides": 3}, {"train": "many"}, {"side": "x"}])
def test_a_file_that_says_something_else_is_refused(tmp_path, odd):
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps({"train": 3, **odd}), encoding="utf-8")
    with pytest.raises(DataError, match=rf"{next(iter(odd))!r} is not understood"):
        open_pictures(file)
