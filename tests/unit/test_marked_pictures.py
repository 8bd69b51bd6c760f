"""Readers of objects on pictures, and scenes that are composed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from allformer.data.pictures import open_pictures
from allformer.data.pictures.coco import Coco
from allformer.data.pictures.outlines import box_of, mask_to_runs, runs_to_mask
from allformer.data.pictures.scenes import Scenes
from allformer.data.pictures.voc import Voc
from allformer.data.pictures.yolo import Yolo
from allformer.errors import DataError
from tests.drawn import write_idx

Image = pytest.importorskip("PIL.Image")


def make_scenes(**more: object) -> Scenes:
    random = np.random.default_rng(0)
    pixels = np.zeros((20, 12, 12), np.uint8)
    pixels[:, 2:10, 3:9] = random.integers(20, 256, (20, 8, 6))
    settings = {"count": 30, "canvas": (40, 48), "objects": (2, 5), "visible": 0.5, **more}
    return Scenes(pixels, np.arange(20) % 3, ("a", "b", "c"), **settings)  # type: ignore[arg-type]


def test_a_scene_is_the_same_whenever_it_is_drawn() -> None:
    first, again, other = make_scenes(), make_scenes(), make_scenes(seed=1)
    assert np.array_equal(first[7].image, again[7].image)
    assert np.array_equal(first[7].boxes, again[7].boxes)
    assert not np.array_equal(first[7].image, other[7].image)
    with pytest.raises(IndexError):
        first[30]


def test_masks_of_a_scene_are_what_is_seen_and_boxes_lie_around_them() -> None:
    covered = 0
    for picture in make_scenes():
        masks = np.asarray(picture.masks)
        assert masks.sum(0).max() <= 1  # each pixel is one object's
        assert np.array_equal(masks.any(0), picture.image[..., 0] > 0)
        assert (masks.sum((1, 2)) >= 24).all()  # half of 8 × 6
        covered += int((masks.sum((1, 2)) < 48).sum())
        for mask, box in zip(masks, picture.boxes, strict=True):
            assert box_of(mask) == tuple(box)
    assert covered > 5


def test_a_scene_without_room_has_fewer_objects() -> None:
    scenes = make_scenes(canvas=(12, 12), objects=(5, 5), visible=1.0)
    assert all(len(picture.classes) < 5 for picture in scenes)
    with pytest.raises(DataError, match="canvas"):
        make_scenes(canvas=(8, 40))


def test_scenes_are_data_of_a_recipe(tmp_path: Path) -> None:
    write_idx(tmp_path / "halves")
    (tmp_path / "my-scenes.json").write_text(
        '{"of": "halves", "train": 6, "test": 3, "canvas": [20, 24], "objects": [1, 2]}'
    )
    splits = open_pictures(tmp_path / "my-scenes.json")
    assert {name: len(part) for name, part in splits.items()} == {"train": 6, "test": 3}
    assert splits["train"].pixels is not None
    assert splits["train"].pixels.shape == (6, 20, 24, 1)
    assert np.array_equal(splits["train"].pixels[4], splits["train"][4].image)
    (tmp_path / "my-scenes.json").write_text('{"of": "halves", "canvass": [20, 24]}')
    with pytest.raises(DataError, match="canvass"):
        open_pictures(tmp_path / "my-scenes.json")


def test_run_lengths_go_both_ways() -> None:
    random = np.random.default_rng(1)
    for mask in (random.random((5, 7)) > 0.5, np.ones((2, 3), bool), np.zeros((2, 3), bool)):
        code = mask_to_runs(mask)
        assert np.array_equal(runs_to_mask(code), mask)
        assert len(code["counts"]) % 2 == (0 if mask[-1, -1] else 1)  # runs of 0 come first
    with pytest.raises(DataError, match="run-length"):
        runs_to_mask({"size": [2, 2], "counts": [3]})


def test_coco_reads_boxes_polygons_runs_and_crowds(tmp_path: Path) -> None:
    masks = pytest.importorskip("pycocotools.mask")
    square = [[2, 1, 6, 1, 6, 5, 2, 5]]
    runs = mask_to_runs(np.eye(8, 10, dtype=bool))
    packed = masks.encode(np.asfortranarray(np.eye(8, 10, k=1, dtype=np.uint8)))
    marks = [
        {"id": 1, "image_id": 5, "category_id": 90, "bbox": [2, 1, 4, 4], "segmentation": square},
        {"id": 2, "image_id": 5, "category_id": 3, "bbox": [0, 0, 8, 8], "iscrowd": 1,
         "segmentation": runs},
        {"id": 3, "image_id": 5, "category_id": 3, "bbox": [0, 0, 8, 8],
         "segmentation": {"size": packed["size"], "counts": packed["counts"].decode()}},
    ]  # fmt: skip
    raw = {
        "images": [{"id": 5, "height": 8, "width": 10, "file_name": "a.png"},
                   {"id": 6, "height": 8, "width": 10, "file_name": "b.png"}],
        "annotations": marks,
        "categories": [{"id": 90, "name": "brush"}, {"id": 3, "name": "car"}],
    }  # fmt: skip
    (tmp_path / "instances.json").write_text(json.dumps(raw))
    found = Coco(tmp_path / "instances.json", tmp_path)
    assert (found.labels, found.categories, found.image_ids) == (("car", "brush"), (3, 90), (5, 6))
    picture = found[0]
    assert picture.classes.tolist() == [1, 0, 0]
    assert picture.boxes[0].tolist() == [2, 1, 6, 5]
    assert picture.crowd.tolist() == [False, True, False]
    drawn = np.asarray(picture.masks)
    assert drawn.shape == picture.masks.shape == (3, 8, 10)
    assert drawn[0, 1:5, 2:6].all()
    assert drawn[0].sum() == 16
    assert np.array_equal(drawn[1], np.eye(8, 10, dtype=bool))
    assert np.array_equal(drawn[2], np.eye(8, 10, k=1, dtype=bool))
    assert len(found[1].classes) == 0


def test_voc_counts_pixels_from_one_and_reads_masks(tmp_path: Path) -> None:
    for folder in ("ImageSets/Main", "Annotations", "JPEGImages", "SegmentationObject"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("one\n")
    box = "<bndbox><xmin>3</xmin><ymin>1</ymin><xmax>6</xmax><ymax>4</ymax></bndbox>"
    xml = (
        "<annotation><filename>one.jpg</filename><size><width>9</width><height>7</height></size>"
        f"<object><name>cat</name><difficult>1</difficult>{box}</object></annotation>"
    )
    (tmp_path / "Annotations/one.xml").write_text(xml)
    numbers = np.zeros((7, 9), np.uint8)
    numbers[0:4, 2:6], numbers[4, 2:6] = 1, 255
    Image.fromarray(numbers).save(tmp_path / "SegmentationObject/one.png")
    picture = open_pictures(tmp_path)["train"][0]
    assert picture.image == tmp_path / "JPEGImages/one.jpg"
    assert picture.boxes.tolist() == [[2, 0, 6, 4]]
    assert picture.crowd.tolist() == [True]
    assert box_of(picture.masks[0]) == (2, 0, 6, 4)
    (tmp_path / "Annotations/one.xml").write_text('<!DOCTYPE a [<!ENTITY b "c">]><a/>')
    with pytest.raises(DataError, match="entities"):
        Voc(tmp_path)[0]


def test_yolo_reads_boxes_polygons_and_numbers_with_gaps(tmp_path: Path) -> None:
    for folder in ("images/train", "labels/train"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("a", "b", "c"):
        Image.new("RGB", (20, 10)).save(tmp_path / f"images/train/{name}.png")
    (tmp_path / "labels/train/a.txt").write_text("4 0.5 0.5 0.5 0.4\n")
    (tmp_path / "labels/train/b.txt").write_text("1 0.1 0.2 0.5 0.2 0.5 0.8 0.1 0.8\n")
    said = "path: .\ntrain: images/train\nnames: {1: cat, 4: dog}\n"
    (tmp_path / "set.yaml").write_text(said)
    found = open_pictures(tmp_path / "set.yaml")["train"]
    assert (len(found), found.labels) == (3, ("cat", "dog"))
    assert found[0].classes.tolist() == [1]
    assert found[0].boxes.tolist() == [[5, 3, 15, 7]]
    assert np.allclose(found[1].boxes, [[2, 2, 10, 8]])
    assert len(found[2].classes) == 0
    (tmp_path / "set.yaml").write_text(said + "skip_if_label_file_missing: true\n")
    assert len(Yolo(tmp_path / "set.yaml")) == 2
    (tmp_path / "labels/train/a.txt").write_text("9 0.5 0.5 0.5 0.4\n")
    with pytest.raises(DataError, match="line 1"):
        found[0]
