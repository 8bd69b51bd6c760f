"""DETR's and YOLOS's images, and what their processors make of answers: as transformers' do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

from allformer.errors import DataError
from allformer.images import Processor
from allformer.images.pad import padded
from allformer.images.settings import make_settings
from allformer.tasks.detect import _sure

CLASSES = {"Detr": DetrImageProcessorPil, "Yolos": YolosImageProcessorPil}
SHAPES = [(60, 94), (94, 60), (64, 64), (33, 110), (48, 96)]
SAID: list[dict[str, Any]] = [
    {"size": {"shortest_edge": 48, "longest_edge": 80}},
    {"size": {"shortest_edge": 64, "longest_edge": 300}, "do_normalize": False},
    {"size": {"height": 50, "width": 70}},
    {"size": 40, "max_size": 70, "format": "coco_detection"},  # of older files
    {"size": {"shortest_edge": 48, "longest_edge": 80}, "image_mean": [0.5, 0.4, 0.3]},
    {"size": {"height": 50, "width": 70}, "do_normalize": None},  # null: off
]


def pictures() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    shapes = [(*shape, 3) for shape in SHAPES]
    return [Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes]


def check_pixels_and_mask(kind: str, said: dict[str, Any]) -> None:
    theirs = CLASSES[kind](**said)(pictures(), return_tensors="pt")
    ours = Processor(make_settings({"image_processor_type": f"{kind}ImageProcessor", **said}))
    pixels, mask = padded([ours.one(image) for image in pictures()])
    assert torch.equal(pixels, theirs["pixel_values"])
    assert torch.equal(mask, theirs["pixel_mask"])


@pytest.mark.parametrize("said", SAID, ids=lambda said: str(said["size"]))
@pytest.mark.parametrize("kind", CLASSES)
def test_pixels_and_mask_are_the_processors_bit_for_bit(kind: str, said: dict[str, Any]) -> None:
    check_pixels_and_mask(kind, said)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_a_file_leaves_out_means_what_the_class_means(kind: str) -> None:
    settings = make_settings({"feature_extractor_type": f"{kind}FeatureExtractor"})
    usual = CLASSES[kind]()
    assert settings.size == {"shortest_edge": 800, "longest_edge": 1333}
    assert (settings.size["shortest_edge"], settings.size["longest_edge"]) == (
        usual.size.shortest_edge, usual.size.longest_edge,
    )  # fmt: skip
    assert settings.do_pad
    assert settings.image_mean == tuple(usual.image_mean)


@pytest.mark.parametrize("kind", [*CLASSES, "Eomt", "ImageGPT"])
def test_a_crop_that_the_class_does_not_make_is_refused(kind: str) -> None:
    raw = {"image_processor_type": f"{kind}ImageProcessor", "do_center_crop": True, "crop_size": 9}
    with pytest.raises(DataError, match=f"a {kind}ImageProcessor does not crop"):
        make_settings(raw)


def test_answers_are_the_processors() -> None:
    make = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 9, 5, generator=make)
    boxes = torch.rand(2, 9, 4, generator=make)
    sizes = [(48, 64), (33, 20)]
    out = SimpleNamespace(logits=logits, pred_boxes=boxes)
    wanted = DetrImageProcessorPil().post_process_object_detection(out, 0.6, sizes)
    from allformer.core.boxes import found

    names = [f"class {i}" for i in range(4)]
    for i, (scores, classes, corners) in enumerate(zip(*found(logits, boxes), strict=True)):
        mine = _sure(scores, classes, corners, sizes[i], names, 0.6)
        order = wanted[i]["scores"].argsort(descending=True)
        assert [one.score for one in mine] == wanted[i]["scores"][order].tolist()
        assert [one.label for one in mine] == [names[n] for n in wanted[i]["labels"][order]]
        theirs = wanted[i]["boxes"][order]
        assert torch.equal(torch.tensor([one.box for one in mine]), theirs)
        assert len(mine) > 1
