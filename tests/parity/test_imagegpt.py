"""ImageGPT against transformers: loud, fp64, disk to disk; its pixels too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoModel,
    ImageGPTConfig,
    ImageGPTForCausalImageModeling,
    ImageGPTForImageClassification,
    ImageGPTModel,
)
from transformers.models.imagegpt.image_processing_pil_imagegpt import ImageGPTImageProcessorPil

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.config import ColourHead, DecoderOnly
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case

SIZES = {"vocab_size": 41, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}
ROWS, PIXELS = 3, 64


def imagegpt(name: str, model: type, labels: str = "words", **changes: Any) -> Case:
    return Case(name, model, lambda: ImageGPTConfig(**{**SIZES, **changes}), labels=labels)


CASES = [
    imagegpt("pixels", ImageGPTForCausalImageModeling),
    imagegpt(
        "pixels, every option", ImageGPTForCausalImageModeling, n_inner=37, layer_norm_epsilon=1e-2,
        scale_attn_by_inverse_layer_idx=True, activation_function="gelu_new",
    ),
    imagegpt("pixels, tied", ImageGPTForCausalImageModeling, tie_word_embeddings=True),
    imagegpt("bare, unscaled", ImageGPTModel, "none", scale_attn_weights=False),
    imagegpt("classes", ImageGPTForImageClassification, "class", num_labels=5),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("imagegpt"))


def pictures(case: Case, seed: int = 1) -> dict[str, Tensor]:
    """Colours of whole images, behind the token that they begin with; the last is not read."""
    make, vocab = torch.Generator().manual_seed(seed), SIZES["vocab_size"]
    ids = torch.randint(0, vocab - 1, (ROWS, PIXELS), generator=make)
    if case.labels == "words":
        ids[:, 0] = vocab - 1
    return {"input_ids": ids}


def labelled(case: Case, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    labels = torch.tensor([3, 0, 4])
    if case.labels == "words":
        labels = inputs["input_ids"].clone()
        labels[:, 0] = labels[1, 7:9] = -100
    return {**inputs, "labels": labels}


def check_forward(name: str, path: Path) -> None:
    case = BY_NAME[name]
    with torch.no_grad():
        zoo.compare(case, af.load(path), zoo.oracle(case), pictures(case))


@each
def test_the_same_numbers(case: Case, written: dict[str, Path]) -> None:
    check_forward(case.name, written[case.name])


@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
def test_the_same_training(name: str, written: dict[str, Path]) -> None:
    case = BY_NAME[name]
    inputs = labelled(case, pictures(case))
    zoo.compare_training(case, af.load(written[name]), zoo.oracle(case), inputs)


@each
def test_the_round_trip_changes_no_bit(
    case: Case, written: dict[str, Path], tmp_path: Path
) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path)


@pytest.mark.parametrize("name", ["pixels", "pixels, every option", "pixels, tied"])
def test_the_same_pixels_are_drawn(name: str, written: dict[str, Path]) -> None:
    case = BY_NAME[name]
    theirs, ours = zoo.oracle(case), af.load(written[name])
    sos = torch.full((4, 1), SIZES["vocab_size"] - 1)
    # one pixel more than there are positions: the last is said and never read
    greedy = {"max_length": PIXELS + 1, "do_sample": False}
    with zoo.unrounded(), torch.no_grad():
        wanted, got = theirs.generate(sos, **greedy), ours.generate(sos, **greedy)
        assert got.tolist() == wanted.tolist()
        drawn = {"max_length": PIXELS + 1, "do_sample": True, "temperature": 1.5, "top_k": 30}
        torch.manual_seed(5)
        wanted = theirs.generate(sos, **drawn)
        torch.manual_seed(5)
        got = ours.generate(sos, **drawn)
    assert got.tolist() == wanted.tolist()
    assert len({tuple(row) for row in got.tolist()}) == 4
    if name != "pixels, tied":
        assert int(got[:, 1:].max()) < SIZES["vocab_size"] - 1, "the first token was said again"


def test_a_classifier_is_certified_and_classifies_images(
    written: dict[str, Path], tmp_path: Path
) -> None:
    (source := tmp_path / "source").mkdir()
    for file in written["classes"].iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    colours = np.random.default_rng(0).uniform(-1, 1, (40, 3)).tolist()
    processor = ImageGPTImageProcessorPil(clusters=colours, size={"height": 8, "width": 8})
    processor.save_pretrained(source)
    assert convert(source, tmp_path / "out")["sound"]
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    found = af.classify_image(tmp_path / "out", [image, image], top=5)[1]
    with torch.no_grad():
        ids = processor(image, return_tensors="pt")["input_ids"]
        theirs = zoo.oracle(BY_NAME["classes"])
        scores = theirs(input_ids=ids).logits.softmax(-1)[0]
        states = theirs.transformer(input_ids=ids).last_hidden_state
    assert [one.label for one in found] == [f"LABEL_{i}" for i in scores.argsort(descending=True)]
    assert max(abs(one.score - scores.max().item()) for one in found[:1]) < 1e-6
    torch.testing.assert_close(
        af.embed_image(tmp_path / "out", image).double(), states.mean(1)[0], rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ConfigError, match=r"has no \[CLS\]"):
        af.embed_image(tmp_path / "out", image, pooling="cls")


def test_masks_of_old_files_are_no_weights(written: dict[str, Path], tmp_path: Path) -> None:
    def with_masks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(3)}
        return tensors | masks | {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}

    old = zoo.rewrite(written["pixels"], tmp_path / "old", with_masks)
    check_forward("pixels", old)


def test_a_head_over_colours_leaves_one_word_out(written: dict[str, Path]) -> None:
    model = af.load(written["pixels"])
    assert model.vocab_head.vocab == 40
    assert af.count(model.config).parameters == sum(p.numel() for p in model.parameters())
    ids = pictures(BY_NAME["pixels"])["input_ids"]
    with pytest.raises(ConfigError, match="labels has 40, but there are 0 … 39"):
        model(input_ids=ids.roll(1, 1), labels=ids.roll(1, 1))
    with pytest.raises(ConfigError, match=r"ColourHead\.tied=True leaves no word out"):
        ColourHead(tied=True)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"activation_function": "wavy"}, "activation_function='wavy'"),
        ({"n_embd": 25}, "must divide"),
        ({"colours": 3}, "colours=3"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(field: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_config({**SIZES, "model_type": "imagegpt", **field})


PUBLISHED = {"imagegpt-small": 24, "imagegpt-medium": 36, "imagegpt-large": 48}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_transformers_models(name: str) -> None:
    tree = af.preset(name)
    raw, _ = write_config(tree)
    with torch.device("meta"):
        theirs = AutoModel.from_config(ImageGPTConfig(**raw))
    body = DecoderOnly(tree.decoder, None)
    assert af.count(body).parameters == sum(p.numel() for p in theirs.parameters())
    assert len(tree.decoder.blocks) == PUBLISHED[name]
