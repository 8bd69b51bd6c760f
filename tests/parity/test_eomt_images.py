"""EoMT's images in and maps out: to the last bit as transformers' image processor (PIL backend)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers.models.eomt.image_processing_pil_eomt import EomtImageProcessorPil

from allformer.errors import DataError
from allformer.images import Processor
from allformer.images.segments import (
    Found,
    instances,
    joined,
    panoptic,
    query_scores,
    scaled,
    unfilled,
)
from allformer.images.settings import make_settings

KIND = {"image_processor_type": "EomtImageProcessor"}
SPLIT = {"do_split_image": True, "size": {"shortest_edge": 24, "longest_edge": None}}
PAD = {"do_pad": True, "size": {"shortest_edge": 24, "longest_edge": 24}}
SHAPES = [(30, 47), (47, 30), (24, 24), (20, 131), (25, 24)]  # height, width
CASES = {
    "split": SPLIT,
    "pad": PAD,
    "split and pad": {**SPLIT, "do_pad": True, "do_resize": False},
    "neither": {"size": {"shortest_edge": 20, "longest_edge": 40}, "do_normalize": False},
    "usual": {},
    "a number": {"size": 20},
}


def picture(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def check_pieces(name: str) -> None:
    """Each image alone, and all together where they go together."""
    said = CASES[name]
    reference, ours = EomtImageProcessorPil(**said), Processor(make_settings({**KIND, **said}))
    for shape in SHAPES:
        image = picture(*shape)
        if name == "split and pad" and min(shape) > 24:
            continue  # pieces of several sizes, of which transformers makes no tensor
        theirs = reference(image, return_tensors="pt")
        found = ours.pieces(image)
        assert torch.equal(found.pixels, theirs["pixel_values"])
        offsets = [(0, *ends) for ends in found.ends]
        assert offsets == [tuple(x.tolist()) for x in theirs["patch_offsets"]]
        assert found.size == shape


@pytest.mark.parametrize("name", CASES)
def test_pieces_are_the_processors_bit_for_bit(name: str) -> None:
    check_pieces(name)


def test_a_long_image_is_taken_in_pieces_alone() -> None:
    ours = Processor(make_settings({**KIND, **SPLIT}))
    assert len(ours.pieces(picture(30, 70)).pixels) == 3
    with pytest.raises(DataError, match=r"cut into 3 pieces \(do_split_image\)"):
        ours.one(picture(30, 70))
    with pytest.raises(DataError, match="has no shortest_edge"):
        make_settings({**KIND, "do_pad": True, "size": {"height": 9, "width": 9}})


def guesses(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores of masks that are smooth and of classes that are sure, as a model's are."""
    make = torch.Generator().manual_seed(seed)
    coarse = torch.randn(rows, 12, 3, 3, generator=make) * 8 - 7
    masks = torch.nn.functional.interpolate(coarse, (12, 12), mode="bilinear")
    return masks, torch.randn(rows, 12, 6, generator=make) * 4


def outputs(masks: Tensor, classes: Tensor, offsets: Any = None) -> Any:
    return SimpleNamespace(
        masks_queries_logits=masks, class_queries_logits=classes, patch_offsets=offsets
    )


def check_semantic() -> None:
    shapes = [(30, 47), (61, 30)]
    reference = EomtImageProcessorPil(**SPLIT)
    theirs = reference([picture(*shape) for shape in shapes], return_tensors="pt")
    offsets = [tuple(x.tolist()) for x in theirs["patch_offsets"]]
    masks, classes = guesses(len(offsets))
    wanted = reference.post_process_semantic_segmentation(
        outputs(masks, classes, offsets), shapes, return_segmentation_scores=True
    )
    size = {"shortest_edge": 24}
    each = [query_scores(m, c, size) for m, c in zip(masks, classes, strict=True)]
    for i, shape in enumerate(shapes):
        mine = [k for k, (image, _, _) in enumerate(offsets) if image == i]
        ends = tuple(offsets[k][1:] for k in mine)
        scores = joined([each[k] for k in mine], ends, shape, size)
        assert torch.equal(scores, wanted[i].segmentation_scores)
        assert torch.equal(scores.argmax(0), wanted[i].segmentation)
        assert len(scores.argmax(0).unique()) > 1


def test_semantic_maps_of_pieces_are_the_processors() -> None:
    check_semantic()


def test_semantic_maps_of_whole_images_are_the_processors() -> None:
    masks, classes = guesses(2, seed=3)
    reference, shapes = EomtImageProcessorPil(**PAD), [(30, 47), (24, 24)]
    wanted = reference.post_process_semantic_segmentation(outputs(masks, classes), shapes)
    for i, shape in enumerate(shapes):
        scores = scaled(query_scores(masks[i], classes[i], PAD["size"]), shape)  # type: ignore[arg-type]
        assert torch.equal(scores.argmax(0), wanted[i])


def same(found: Found, wanted: dict[str, Any]) -> int:
    """A map and its segments; how many there are."""
    assert torch.equal(found.ids, wanted["segmentation"].long())
    told = wanted["segments_info"]
    assert [one["id"] for one in told] == list(range(len(found.labels)))
    assert [one["label_id"] for one in told] == found.labels
    assert [one["score"] for one in told] == [round(score, 6) for score in found.scores]
    return len(told)


def check_things(task: str, **more: Any) -> None:
    seen = 0
    for seed in range(9):
        masks, classes = guesses(3, seed)
        shapes = [(30, 47), (47, 30), (24, 24)]
        process = getattr(EomtImageProcessorPil(**PAD), f"post_process_{task}_segmentation")
        asked = {("stuff_classes" if name == "stuff" else name): x for name, x in more.items()}
        wanted = process(outputs(masks, classes), shapes, **asked)
        way = {"instance": instances, "panoptic": panoptic}[task]
        for i, shape in enumerate(shapes):
            own = unfilled(masks[i], shape, PAD["size"])  # type: ignore[arg-type]
            seen += same(way(own, classes[i], **more), wanted[i])
    assert seen > 20


@pytest.mark.parametrize("threshold", [0.8, 0.5])
def test_instances_are_the_processors(threshold: float) -> None:
    check_things("instance", threshold=threshold)


@pytest.mark.parametrize("more", [{}, {"stuff": [1, 3]}, {"stuff": [0, 1, 2, 3, 4]}])
def test_panoptic_segments_are_the_processors(more: dict[str, Any]) -> None:
    check_things("panoptic", threshold=0.5, **more)


def test_where_nothing_is_sure_there_is_no_segment() -> None:
    masks, classes = torch.randn(4, 9, 9), torch.zeros(4, 6)
    for found in (panoptic(masks, classes), instances(masks, classes)):
        assert found.labels == []
        assert (found.ids == -1).all()
