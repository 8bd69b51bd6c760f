"""Processors: settings that cannot be, batches in order, errors that name the image."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from allformer.errors import DataError
from allformer.images import Processor, load_processor
from allformer.images.in_order import in_order
from allformer.images.settings import make_settings

VIT = {"image_processor_type": "ViTImageProcessor", "size": 8}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "image_processor_type",
            "DonutImageProcessor",
            "'DonutImageProcessor' is not known; known",
        ),
        ("size", {"longest_edge": 8}, "size=.*is no size; it must have height and width"),
        ("size", {"height": 0, "width": 8}, "size.height=0 must be a whole number from 1"),
        ("size", 10**9, "size.height=1000000000 must be a whole number"),
        ("size", True, "size=True is no size"),
        ("resample", 9, r"resample=9 is no filter; try 0 \(nearest\)"),
        ("do_resize", 1, "do_resize=1 must be true or false"),
        ("do_center_crop", True, "do_center_crop is true, but crop_size=None"),
        ("rescale_factor", float("nan"), "rescale_factor=nan must be a number"),
        ("image_mean", [0.5, 0.5], "image_mean has 2 numbers, but RGB has 3 channels"),
        ("image_std", [0.5, 0.5, 0], "has a zero"),
        ("image_std", ["a"], "image_std='a' must be a number"),
        ("do_pad", True, "do_pad=True is not known here; only False is"),
        ("crop_sise", 8, "crop_sise=8 is no field.*did you mean crop_size"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(field, value, said):
    with pytest.raises(DataError, match=said):
        make_settings({**VIT, field: value})


def test_a_directory_without_the_file_is_told_what_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"has no preprocessor_config.json.*copy it"):
        load_processor(tmp_path)


def test_a_long_narrow_image_does_not_become_a_huge_one():
    raw = {"image_processor_type": "CLIPImageProcessor"}
    with pytest.raises(
        DataError, match="image 1, 100,000 × 1, would be resized to 22,400,000 × 224"
    ):
        Processor(make_settings(raw))(Image.new("RGB", (100_000, 1)))


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_come_in_order_and_tell_how_many_are_done(workers, tmp_path):
    for i in range(7):
        Image.new("RGB", (9, 9), (i, i, i)).save(tmp_path / f"{i}.png")
    raw = {**VIT, "do_rescale": False, "do_normalize": False}
    paths, done = [tmp_path / f"{i}.png" for i in range(7)], []
    processor = Processor(make_settings(raw))
    found = list(processor.batches(iter(paths), 3, workers=workers, progress=done.append))
    assert [len(batch) for batch in found] == [3, 3, 1]
    assert done == [3, 6, 7]
    assert torch.cat(found)[:, 0, 0, 0].tolist() == [*range(7)]
    assert torch.equal(torch.cat(found), processor(paths, workers=workers))


def test_a_bad_image_among_many_is_named(tmp_path):
    processor = Processor(make_settings(VIT))
    good = np.zeros((9, 9, 3), np.uint8)
    with pytest.raises(DataError, match=r"^image 3 is empty"):
        processor([good, good, b"", good])
    with pytest.raises(DataError, match="there is no image"):
        processor([])


def test_images_that_do_not_go_together_are_told_apart():
    raw = {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, "size": 8}
    images = [np.zeros((9, width, 3), np.uint8) for width in (9, 9, 18)]
    with pytest.raises(
        DataError, match=r"image 3 is prepared to \(3, 8, 16\), image 1 to \(3, 8, 8\)"
    ):
        Processor(make_settings(raw))(images)


def test_threads_work_side_by_side_read_little_ahead_and_stop_when_left():
    begun, barrier = [], threading.Barrier(2, timeout=10)

    def work(i):
        begun.append(i)
        if i < 2:
            barrier.wait()  # nobody passes alone
        time.sleep(0.001)
        return i

    stream = in_order(work, iter(range(1000)), workers=2)
    assert [next(stream) for _ in range(5)] == [0, 1, 2, 3, 4]
    stream.close()
    assert len(begun) <= 5 + 8


@pytest.mark.parametrize(
    "change",
    [{}, {"do_rescale": False}, {"do_normalize": False}, {"image_std": [0.1, 0.3, 0.7]}],
    ids=["usual", "no rescaling", "no norm", "own"],
)
def test_bytes_become_values_with_the_very_same_bits_wherever_they_are(change):
    """What a GPU is sent is looked up there."""
    processor = Processor(make_settings({**VIT, **change}))
    picture = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None]
    assert torch.equal(processor.values(pixels), processor(picture))
    assert torch.equal(processor.values(255 - pixels), processor(255 - picture))


def test_values_that_stay_bytes_stay_as_they_are():
    plain = Processor(make_settings({**VIT, "do_rescale": False, "do_normalize": False}))
    pixels = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    assert plain.values(pixels) is pixels


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_on_a_gpu_have_the_bits_of_those_on_a_cpu():
    processor = Processor(make_settings(VIT))
    pictures = [np.full((9, 8, 3), 20 * i, dtype=np.uint8) for i in range(5)]
    there = list(processor.batches(pictures, 2, device=torch.device("cuda")))
    assert [len(batch) for batch in there] == [2, 2, 1]
    assert torch.equal(torch.cat(there).cpu(), processor(pictures))
