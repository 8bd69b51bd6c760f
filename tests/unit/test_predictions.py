"""predictions.json: what a run says of held-out examples, with pictures in it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from allformer.errors import CheckpointError, DataError
from allformer.images.read import read_image
from allformer.images.thumbnail import COLOURS, SIDE, as_bytes, label_map, thumbnail
from allformer.train.predictions import Box, Mask, Prediction, Predictions, Seen

PICTURE = thumbnail(np.zeros((8, 8, 3), np.uint8))
ALL = Predictions(
    rows=(Prediction("a", "b", "c", right=False, score=0.5),),
    pictures=(
        Seen(PICTURE, "boot", "shoe", right=False, score=0.81),
        Seen(PICTURE, boxes=(Box((0, 0, 0.5, 1), "x"),), found=(Box((0, 0, 1, 1), "x", 0.9),)),
        Seen(PICTURE, mask=Mask(PICTURE, ("a",)), found_mask=Mask(PICTURE, ("a", "a"))),
        Seen(PICTURE, again=PICTURE),
        Seen(wanted="a red shoe", drawn=(Seen(PICTURE, given="shoe", right=True), Seen(PICTURE))),
    ),
)


def test_all_kinds_of_pictures_come_back_as_they_were(tmp_path):
    ALL.save(tmp_path)
    assert Predictions.load(tmp_path) == ALL


def test_a_run_without_pictures_is_read_and_a_broken_one_refused(tmp_path):
    ALL.save(tmp_path)
    file = tmp_path / "predictions.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    pictures = raw.pop("pictures")
    file.write_text(json.dumps(raw), encoding="utf-8")
    found = Predictions.load(tmp_path)
    assert found is not None
    assert found.pictures == ()
    del pictures[0]["mask"]
    file.write_text(json.dumps(raw | {"pictures": pictures}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="mask"):
        Predictions.load(tmp_path)


def test_a_thumbnail_keeps_small_pictures_and_shrinks_large_ones():
    small = torch.arange(2 * 3 * 3).reshape(3, 2, 3) / 17
    again = np.asarray(read_image(as_bytes(thumbnail(small))))
    assert np.array_equal(again, np.rint(small.permute(1, 2, 0).numpy() * 255))
    assert read_image(as_bytes(thumbnail(np.zeros((300, 600), np.uint8)))).size == (SIDE, SIDE // 2)


def test_a_label_map_has_a_colour_for_each_number_and_none_for_nothing():
    ids = np.array([[0, 1], [len(COLOURS), 255]])
    again = np.asarray(read_image(as_bytes(label_map(ids))))
    first, second = COLOURS[:2]
    assert again.reshape(-1, 3).tolist() == [[*first], [*second], [*first], [255] * 3]
    halves = np.repeat([[0] * 300, [1] * 300], 150, 0)
    found = np.unique(np.asarray(read_image(as_bytes(label_map(halves)))).reshape(-1, 3), axis=0)
    assert len(found) == 2  # no third colour where two meet
    for wrong in (np.zeros((2, 2, 2)), np.full((2, 2), 256), np.zeros((0, 2))):
        with pytest.raises(DataError, match="label map"):
            label_map(wrong)
