"""`segment`: EoMT and Segmenter in one line, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import EomtConfig, EomtForUniversalSegmentation
from transformers.models.eomt.image_processing_pil_eomt import EomtImageProcessorPil
from typer.testing import CliRunner

import allformer as af
from allformer import config
from allformer.cli.main import app
from allformer.errors import ConfigError, TaskError
from allformer.images import Processor
from allformer.images.overlay import save_ids
from allformer.images.settings import make_settings
from tests.loud import make_loud

NAMES = ("cat", "dog", "sky")
SIZES = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "mlp_ratio": 2,
    "image_size": 24, "patch_size": 4, "num_queries": 8, "num_blocks": 1, "num_upscale_blocks": 1,
    "id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)},
}  # fmt: skip
PAD = {"do_pad": True, "size": {"shortest_edge": 24, "longest_edge": 24}}
SPLIT = {"do_split_image": True, "size": {"shortest_edge": 24, "longest_edge": None}}
SHAPES = [(30, 47), (47, 30), (24, 24)]
THRESHOLD = 0.3


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EoMT that fills images up, one that cuts them, a Segmenter, and pictures."""
    root = tmp_path_factory.mktemp("segment")
    torch.manual_seed(0)
    model = make_loud(EomtForUniversalSegmentation(EomtConfig(**SIZES)), tables=None).eval()
    model.class_predictor.weight.data *= 6  # sure of itself
    model.attn_mask_probs.zero_()
    for name, said in (("pad", PAD), ("split", SPLIT)):
        model.save_pretrained(root / name)
        EomtImageProcessorPil(**said).save_pretrained(root / name)
    _segmenter(root / "segmenter")
    (root / "photos").mkdir()
    for i, (height, width) in enumerate(SHAPES):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "photos" / f"{i}.png")
    return root


def _segmenter(path: Path) -> None:
    source = config.Patches(4, image=(20, 20))
    block = config.Block(config.Attention(2), config.Feed(32, act="gelu"), norm_at="pre")
    place = config.LearnedPlane(source.shape, source.placed)
    stack = config.Stack(16, source, place, (block,), final_norm=config.Norm())
    tree = config.EncoderOnly(stack, config.LinearMasks(NAMES, cells=2))
    af.save(make_loud(af.build(tree, seed=0)), path, family="allformer")
    said = {"image_processor_type": "ViTImageProcessor", "size": 20}
    Processor(make_settings(said)).save(path)


def photos(there: Path) -> list[Path]:
    return sorted((there / "photos").iterdir())


def reference(there: Path, name: str, task: str) -> list[Any]:
    """What transformers says, image by image."""
    processor = EomtImageProcessorPil.from_pretrained(there / name)
    model = EomtForUniversalSegmentation.from_pretrained(there / name).eval()
    found = []
    for path, shape in zip(photos(there), SHAPES, strict=True):
        inputs = processor(Image.open(path), return_tensors="pt")
        with torch.no_grad():
            out = model(**inputs)
        more = {} if task == "semantic" else {"threshold": THRESHOLD}
        found += getattr(processor, f"post_process_{task}_segmentation")(out, [shape], **more)
    return found


@pytest.mark.parametrize(
    ("name", "task"),
    [("pad", "semantic"), ("pad", "instance"), ("pad", "panoptic"), ("split", "semantic")],
)
def test_maps_are_transformers(there: Path, name: str, task: str) -> None:
    found = af.segment(there / name, photos(there), task=task, batch=2, threshold=THRESHOLD)
    seen = 0
    for ours, theirs in zip(found, reference(there, name, task), strict=True):
        ids = theirs if task == "semantic" else theirs["segmentation"]
        assert (ours.ids != ids.long().numpy()).mean() < 0.01  # fp32: a pixel at a border
        if task != "semantic":
            told = theirs["segments_info"]
            assert [one.label for one in ours.segments] == [NAMES[x["label_id"]] for x in told]
            for one, x in zip(ours.segments, told, strict=True):
                assert abs(one.score - x["score"]) < 1e-4
            assert all(one.area == ours.mask(one).sum() for one in ours.segments)
        seen += len(ours.segments)
    assert seen >= (1 if task == "panoptic" else 3)


def test_the_default_is_what_the_model_was_made_for(there: Path) -> None:
    image = photos(there)[0]
    assert af.segment(there / "pad", image).task == "panoptic"
    assert af.segment(there / "split", image).task == "semantic"
    found = af.segment(there / "segmenter", image)
    assert (found.task, found.ids.shape) == ("semantic", (30, 47))
    assert {one.label for one in found.segments} <= set(NAMES)
    assert sum(one.area for one in found.segments) == 30 * 47


def test_a_segmenters_map_is_that_of_its_scores(there: Path) -> None:
    pipeline, image = af.open_image_pipeline(there / "segmenter"), photos(there)[1]
    with torch.no_grad():
        logits = pipeline.model(pixel_values=pipeline.processor(image)).logits
    for size in ((20, 20), (47, 30)):
        logits = torch.nn.functional.interpolate(logits, size, mode="bilinear")
    assert np.array_equal(af.segment(pipeline, image).ids, logits[0].argmax(0).numpy())


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("segmenter", {"task": "instance"}, "gives a class for each pixel alone"),
        ("split", {"task": "panoptic"}, "cuts images into pieces"),
        ("pad", {"task": "things"}, "try semantic, instance, panoptic"),
        ("pad", {"stuff": ["sea"]}, "'sea' is none of the labels"),
        ("pad", {"task": "instance", "stuff": ["sky"]}, "knows no stuff"),
        ("pad", {"threshold": 1.5}, "threshold=1.5 must be from 0 to 1"),
        ("pad", {"batch": 0}, "batch=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(there: Path, name: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        af.segment(there / name, photos(there)[0], **more)


def test_a_model_without_masks_is_refused(there: Path) -> None:
    with pytest.raises(TaskError, match=r"it can segment, embed-image"):
        af.classify_image(there / "segmenter", photos(there)[0])


def test_the_verb_writes_pictures_and_numbers(there: Path, tmp_path: Path) -> None:
    args = ["segment", str(there / "pad"), str(there / "photos"), "--task", "instance"]
    done = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "seen"), "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [Path(row["image"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    for row, (height, width) in zip(rows, SHAPES, strict=True):
        stem = tmp_path / "seen" / Path(row["image"]).stem
        times = -(-320 // max(height, width))  # to be read: small ones are made larger
        assert Image.open(f"{stem}.overlay.png").size == (times * width, times * height)
        shown = np.array(Image.open(f"{stem}.ids.png")).astype(int)
        kept = np.load(f"{stem}.npz")
        assert np.array_equal(np.where(shown == 255, -1, shown), kept["ids"])
        assert kept["labels"].tolist() == [one["label"] for one in row["segments"]]
        assert all(0.8 <= one["score"] <= 1 for one in row["segments"])
    plain = CliRunner().invoke(app, args)
    assert "instance, 47 × 30" in " ".join(plain.stdout.split())


def test_many_numbers_make_a_png_of_16_bits(tmp_path: Path) -> None:
    ids = np.arange(-1, 299).reshape(20, 15)
    save_ids(ids, tmp_path / "ids.png")
    shown = np.array(Image.open(tmp_path / "ids.png")).astype(int)
    assert np.array_equal(np.where(shown == 65_535, -1, shown), ids)
