"""The report of a model that sees: pictures, where it looks in them, what it knows of places."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import allformer as af
from allformer import config
from allformer.explain.diagram import architecture
from allformer.explain.report import write_report
from allformer.explain.vision.looks import looks, rollout
from allformer.explain.vision.overlay import picture, size
from allformer.explain.vision.pictures import SHOWN, picture_list
from allformer.explain.vision.places import MOST, place_map, similarities
from allformer.explain.words import WORDS
from allformer.images import Processor
from allformer.images.settings import make_settings
from allformer.images.thumbnail import label_map, thumbnail
from allformer.train.predictions import Box, Mask, Predictions, Seen
from tests.unit.test_report import HOSTILE, Outline, rows

LABELS = ("cat", "dog")


def seeing(**changes: Any) -> config.EncoderOnly:
    source = config.Patches(4, image=(12, 16), **changes)
    block = config.Block(config.Attention(heads=2), config.Feed(16, act="gelu"), norm_at="pre")
    place = config.LearnedPlane(source.shape, source.placed)
    stack = config.Stack(8, source, place, (block,) * 3, final_norm=config.Norm())
    return config.EncoderOnly(stack, config.ClassHead(LABELS, at="first"))


def processor() -> Processor:
    size = {"height": 12, "width": 16}
    return Processor(make_settings({"image_processor_type": "ViTImageProcessor", "size": size}))


def noise(seed: int = 0) -> str:
    values = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return thumbnail(values)


def page_of(tmp_path: Path, predictions: Predictions, **given: Any) -> str:
    model = af.build(seeing(), seed=0)
    told = {"history": rows(), "scores": {"accuracy": 0.5}, "facts": {}, "processor": processor()}
    told |= {"predictions": predictions, **given}
    path = write_report(tmp_path / "r.html", model=model, tokenizer=None, **told)  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


# --- where it looks -------------------------------------------------------------------------------


def test_the_looks_of_cls_are_those_of_a_trace():
    model = af.build(seeing(registers=1), seed=0).eval()
    pixels = torch.randn(1, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    found = looks(model, pixels)
    assert found is not None
    assert found.who == "cls"
    seen = af.trace(model, only="encoder.*.attention.weights", pixel_values=pixels)
    for i in range(3):
        weights = seen[f"encoder.{i}.attention.weights"][0]  # H T T
        wanted = weights[:, 0, 2:].reshape(2, 3, 4)
        assert np.allclose(found.heads[i], wanted.numpy(), atol=1e-6)
    assert found.rollout.shape == (3, 4)
    assert found.rollout.sum() == pytest.approx(1)


def test_rollout_multiplies_what_each_layer_mixes_and_lets_pass():
    first = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    second = torch.tensor([[0.2, 0.8], [1.0, 0.0]], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    wanted = (0.5 * second + 0.5 * eye) @ (0.5 * first + 0.5 * eye)
    assert torch.allclose(rollout([first, second]), wanted)


def test_without_cls_all_patches_are_asked():
    tree = seeing(cls=False)
    tree = replace(tree, head=replace(tree.head, at="patches"))
    model = af.build(tree, seed=0).eval()
    pixels = torch.randn(1, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    found = looks(model, pixels)
    assert found is not None
    assert found.who == "patches"
    seen = af.trace(model, only="encoder.0.attention.weights", pixel_values=pixels)
    wanted = seen["encoder.0.attention.weights"][0].mean(1).reshape(2, 3, 4)
    assert np.allclose(found.heads[0], wanted.numpy(), atol=1e-6)
    assert found.heads[0].sum((1, 2)) == pytest.approx([1, 1])


# --- places ---------------------------------------------------------------------------------------


def test_each_small_map_stands_at_its_place_and_compares_it_with_all():
    vectors = np.random.default_rng(0).normal(size=(6, 5))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    mosaic = similarities(vectors, (2, 3))
    assert mosaic.shape == (2 * 3 - 1, 3 * 4 - 1)
    for row in range(2):
        for column in range(3):
            tile = mosaic[row * 3 : row * 3 + 2, column * 4 : column * 4 + 3]
            wanted = (unit @ unit[row * 3 + column]).reshape(2, 3)
            assert np.allclose(tile, wanted)
    assert not mosaic[2].any()


def test_a_fine_grid_is_thinned_and_a_formula_shown_too():
    wide = similarities(np.ones((1, 1)).repeat(30, 0), (1, 30))
    assert wide.shape == (1, MOST * 31 - 1)
    tree = seeing()
    stack = replace(tree.encoder, position=config.SinusoidalPlane())
    assert "data:image/png" in place_map(af.build(replace(tree, encoder=stack), seed=0))


# --- pictures -------------------------------------------------------------------------------------


def test_mistakes_come_first_though_not_alone():
    right = tuple(Seen(noise(), "cat", "cat", right=True, score=0.9) for _ in range(30))
    wrong = tuple(Seen(noise(), "cat", "dog", right=False, score=0.6) for _ in range(30))
    shown, folded = picture_list(Predictions(pictures=right + wrong)).split("<details>")
    assert shown.count('<li class="wrong">') == SHOWN // 3
    assert shown.count('<li class="right">') == SHOWN - SHOWN // 3
    assert folded.count("<li") == 60 - SHOWN
    assert "is: cat" in shown
    assert "应为：cat" in shown
    assert "60%" in shown


def test_boxes_lie_where_they_are_and_what_is_missed_is_told():
    true = (Box((0.25, 0.5, 0.75, 1.0), "cat"), Box((0, 0, 0.1, 0.1), "dog"))
    html = picture_list(
        Predictions(
            pictures=(Seen(noise(), boxes=true, found=(Box((-1, 0.5, 0.7, 2), "cat", 0.93),)),)
        )
    )
    assert '<svg class="boxes true"' in html
    assert 'x="0.2500" y="0.5000" width="0.5000" height="0.5000"' in html
    assert 'x="0.0000" y="0.5000" width="0.7000" height="0.5000"' in html  # kept inside
    assert "93%" in html
    assert "1 not found" in html
    colours = re.findall(r"stroke:(rgb[^\"]*)", html)
    assert len(colours) == 3
    assert colours[0] == colours[2] != colours[1]  # a colour for each label


def test_masks_have_one_legend_or_each_its_own_segments():
    ids = label_map(np.zeros((12, 16), np.uint8))
    same = Mask(ids, LABELS)
    html = picture_list(Predictions(pictures=(Seen(noise(), mask=same, found_mask=same),)))
    assert html.count('class="mask"') == 2
    assert '<p class="legend">' in html
    own = Mask(ids, ("cat", "cat"))
    html = picture_list(Predictions(pictures=(Seen(noise(), mask=own, found_mask=own),)))
    assert '<p class="legend">' not in html
    assert html.count("swatch") == 2


def test_reconstructions_and_drawings_are_shown_with_their_captions():
    first, second = noise(1), noise(2)
    drawn = (
        Seen(first, given="cat", right=True, score=0.31),
        Seen(second, given="dog", right=False),
    )
    html = picture_list(
        Predictions(pictures=(Seen(noise(), again=second), Seen(wanted="a <cat>", drawn=drawn)))
    )
    assert html.index("a &lt;cat&gt;") < html.index(first) < html.index(noise())
    assert "finds it in 1 of 2" in html
    assert "✓ cat · 0.31" in html
    assert html.count(second) == 2
    assert WORDS["pictures.view.again"][1] in html


def test_what_is_no_picture_is_left_out():
    assert size(noise()) == (16, 12)
    for odd in ("", "x", HOSTILE, noise()[:10], "aGVsbG8gd29ybGQgaGVsbG8gd29ybGQgaGVsbG8="):
        assert size(odd) is None
        assert picture(odd) == ""


# --- the page -------------------------------------------------------------------------------------


def test_the_page_of_a_model_that_sees_is_whole(tmp_path):
    pictures = tuple(
        Seen(noise(i), LABELS[i % 2], "cat", right=i % 2 == 0, score=0.7) for i in range(6)
    )
    page = page_of(tmp_path, Predictions(pictures=pictures, labels=LABELS))
    outline = Outline(page)
    assert outline.open == []
    assert "http:" not in page
    assert "https:" not in page
    for tag, name, value in outline.attributes:
        if name in ("src", "href"):
            assert value.startswith(("#", "data:")), (tag, name)
    for key in (
        "looks.intro.cls",
        "looks.veil",
        "looks.rollout.about",
        "places.title",
        "architecture.intro.sees",
    ):
        assert all(text in page for text in WORDS[key]), key
    assert "3 × 4 patches of 4 × 4" in page
    assert "vocabulary" not in outline.text
    # two labels and two more pictures: rollout, the last layer and 3 × 2 heads on each
    assert page.count('class="veil"') == 4 * (2 + 3 * 2)
    assert len(set(re.findall(r"\.(back-\w+)\{background-image:url\(data:image/png", page))) == 4


def test_a_page_without_pictures_or_processor_says_so(tmp_path):
    page = page_of(tmp_path, Predictions(), processor=None)
    assert WORDS["looks.none"][1] in page
    assert WORDS["samples.none"][0] in page


def test_hostile_pictures_stay_text(tmp_path):
    odd = Seen(
        noise(), HOSTILE, HOSTILE + "x", right=False,
        boxes=(Box((0, 0, 1, 1), HOSTILE),), mask=Mask(HOSTILE, (HOSTILE,)),
        again=HOSTILE, drawn=(Seen(HOSTILE, HOSTILE, HOSTILE),),
    )  # fmt: skip
    page = page_of(tmp_path, Predictions(pictures=(odd, replace(odd, drawn=()))))
    outline = Outline(page)
    assert outline.tags.count("script") == 2
    assert outline.open == []
    assert "<img src=x" not in page
    assert not any(name == "onerror" for _, name, _ in outline.attributes)


def test_two_towers_are_drawn_beside_each_other():
    svg = architecture(af.preset("clip-vit-base-patch32"))
    assert svg.count("<svg") == 1
    for said in ("Text × 12 layers", "Vision × 12 layers", "32 × 32 pixels → 768", "768 → 512"):
        assert said in svg
