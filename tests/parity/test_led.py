"""LED against transformers: loud, fp64, disk to disk; and the text that it writes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LEDConfig,
    LEDForConditionalGeneration,
    LEDForQuestionAnswering,
    LEDModel,
)

import allformer as af
from allformer.config import GlobalWindow, Learned
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.combos import beam_or_greedy, sampled
from tests.parity.test_generate_families import WAYS, talkative
from tests.parity.test_longformer import marks
from tests.parity.zoo import Case

SIZES = {
    "vocab_size": 83, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 3, "encoder_ffn_dim": 34,
    "decoder_ffn_dim": 40, "max_encoder_position_embeddings": 80,
    "max_decoder_position_embeddings": 70, "attention_window": [8, 24],
}  # fmt: skip


def led(**more):
    return functools.partial(LEDConfig, **{**SIZES, **more})


CASES = [
    Case("words", LEDForConditionalGeneration, led()),
    Case("words, every option", LEDForConditionalGeneration,
         led(activation_function="relu", attention_window=12, decoder_start_token_id=7,
             dropout=0.2, attention_dropout=0.1, activation_dropout=0.3)),
    Case("bare", LEDModel, led(), labels="none"),
    Case("span", LEDForQuestionAnswering, led(), labels="span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("leds"))


def batch(case: Case, theirs: Any, side: str) -> dict[str, Tensor]:
    inputs = zoo.batch(case, theirs, side)
    return inputs | {"global_attention_mask": marks(inputs["input_ids"])}


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs, ours = zoo.oracle(case), af.load(path)
    with torch.no_grad():
        zoo.compare(case, ours, theirs, batch(case, theirs, side))
        zoo.compare(case, ours, theirs, zoo.batch(case, theirs, side))


@pytest.mark.every(2)
@each
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_the_same_numbers_with_marks_and_without(case, side, written):
    check_forward(case.name, side, written[case.name])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
def test_the_same_training(name, side, written):
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, batch(case, theirs, side))
    zoo.compare_training(case, af.load(written[name]), theirs, inputs)


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


@pytest.mark.every(2)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_tokens_are_written(way, tmp_path):
    case = BY_NAME["words"]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = zoo.batch(case, theirs, "right")
    del inputs["decoder_input_ids"]
    said = []
    for some in ({}, {"global_attention_mask": marks(inputs["input_ids"])}):
        with zoo.unrounded(), torch.no_grad():
            wanted = theirs.generate(**inputs, **some, max_new_tokens=14, **WAYS[way])
        got = ours.generate(**inputs, **some, max_new_tokens=14, **WAYS[way])
        assert got.tolist() == wanted.tolist()
        plain = ours.generate(**inputs, **some, max_new_tokens=14, use_cache=False, **WAYS[way])
        assert plain.tolist() == got.tolist()
        said.append(got.tolist())
    assert said[0] != said[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # both have much to say about such options
@pytest.mark.parametrize("seed", [3, 8, 11])
def test_the_same_tokens_with_any_combination_of_options(seed, tmp_path):
    case = BY_NAME["words"]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = batch(case, theirs, "right")
    del inputs["decoder_input_ids"]
    for make in (beam_or_greedy, sampled):
        options = make(seed, encoder=True) | {"decoder_start_token_id": 2}
        torch.manual_seed(seed)
        wanted = theirs.generate(**inputs, **options)
        torch.manual_seed(seed)
        for _ in ours.encoder.layers:
            torch.rand([])  # transformers draws for each layer of the encoder, and drops none
        assert ours.generate(**inputs, **options).tolist() == wanted.tolist()


def test_marks_are_refused_where_nobody_takes_them(written):
    ids = torch.randint(4, 83, (1, 9))
    bart = af.build(af.preset("bart-base"), device="meta")
    with pytest.raises(ConfigError, match="global_attention_mask"):
        bart.generate(ids, global_attention_mask=torch.ones_like(ids))
    with pytest.raises(ConfigError, match=r"global_attention_mask=\(1, 5\) must be rows × tokens"):
        af.load(written["words"]).generate(
            ids, global_attention_mask=torch.ones(1, 5), max_new_tokens=2
        )


# --- config.json ----------------------------------------------------------------------------------

BASE = {  # allenai/led-base-16384, in small
    "activation_dropout": 0.0, "activation_function": "gelu",
    "architectures": ["LEDForConditionalGeneration"], "attention_dropout": 0.0,
    "attention_window": [1024, 1024], "bos_token_id": 0, "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 24, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48, "decoder_layerdrop": 0.0, "decoder_layers": 2,
    "decoder_start_token_id": 2, "dropout": 0.1, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "encoder_layerdrop": 0.0, "encoder_layers": 2, "eos_token_id": 2,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02,
    "is_encoder_decoder": True, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "max_decoder_position_embeddings": 1024, "max_encoder_position_embeddings": 16384,
    "model_type": "led", "pad_token_id": 1, "vocab_size": 99,
}  # fmt: skip


def test_the_published_config_is_read_and_written_back_field_by_field():
    model, origin = read_config(BASE)
    again, _ = write_config(model, origin)
    assert {name: again[name] for name in BASE} == BASE
    plain, _ = write_config(model)
    assert plain["model_type"] == "led"
    assert read_config(plain)[0] == model


def test_absent_fields_have_transformers_defaults():
    short = {"architectures": ["LEDModel"], "model_type": "led"}
    assert read_config(short)[0] == read_config({**LEDConfig().to_dict(), **short})[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attention_window": [1024]}, "attention_window for 1 layers, but there are 2"),
        ({"scale_embedding": True}, "has scale_embedding=True, which is not supported"),
        ({"max_position_embeddings": 99}, "has max_position_embeddings=99.*for a led model"),
        ({"architectures": ["LEDForSequenceClassification"]}, "supported are LEDForConditional"),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(change, says):
    with pytest.raises(CheckpointError, match=says):
        read_config(BASE | change)


def test_presets_are_transformers_models_of_the_same_size():
    for name, size in (("base", 161_844_480), ("large", 459_801_600)):
        tree = af.preset(f"led-{name}-16384")
        with torch.device("meta"):
            theirs = LEDForConditionalGeneration(LEDConfig(**write_config(tree)[0]))
        assert af.count(tree).parameters == sum(p.numel() for p in theirs.parameters()) == size
        assert tree.encoder.position == Learned(16_384, count="all")
        assert tree.decoder.position == Learned(1024, count="all")
        assert {b.attention.mixer for b in tree.encoder.blocks} == {GlobalWindow(512, 512)}
