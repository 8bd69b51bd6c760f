"""Mistral against transformers: disk to disk, loud, fp64; a window, a ring, or neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    MistralForQuestionAnswering,
    MistralForSequenceClassification,
    MistralForTokenClassification,
    MistralModel,
)

import allformer as af
from allformer.config import Full, Window
from allformer.core.states import Growing, Ring
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.test_decoders import LLAMA, SQUEEZED
from tests.parity.test_generate_families import WAYS, prompt, talkative
from tests.parity.zoo import Case


def mistral(name: str, model: type, labels: str = "words", **changes: object) -> Case:
    fields = {**LLAMA, "sliding_window": 9, **changes}
    return Case(f"mistral {name}", model, lambda: MistralConfig(**fields), labels=labels)


CASES = [
    mistral("window", MistralForCausalLM),
    mistral(
        "every option", MistralForCausalLM, head_dim=20, tie_word_embeddings=True, sliding_window=1,
        hidden_act="gelu", rope_parameters=SQUEEZED, rms_norm_eps=1e-3, num_key_value_heads=6,
    ),
    mistral("no window", MistralForCausalLM, sliding_window=None),
    mistral("bare", MistralModel, "none"),
    mistral("classes", MistralForSequenceClassification, "class", num_labels=3),
    mistral("tags", MistralForTokenClassification, "token", num_labels=5),
    mistral("answers", MistralForQuestionAnswering, "span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    return zoo.write_all(CASES, tmp_path_factory.mktemp("mistral"))


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


@each
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


@pytest.mark.parametrize("name", ["mistral window", "mistral answers"])
def test_the_same_training(name, written):
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, zoo.batch(case, theirs, "left"))
    zoo.compare_training(case, af.load(written[name]), theirs, inputs)


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["mistral window", "mistral no window"])
def test_the_same_tokens_are_generated(name, way, tmp_path):
    """Prompts longer than the window, and longer still: the ring goes round."""
    case = BY_NAME[name]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = prompt(case, theirs)
    with zoo.unrounded(), torch.no_grad():
        wanted = theirs.generate(**inputs, max_new_tokens=14, **WAYS[way])
        got = ours.generate(**inputs, max_new_tokens=14, **WAYS[way])
        plain = ours.generate(**inputs, max_new_tokens=14, use_cache=False, **WAYS[way])
    assert got.tolist() == wanted.tolist() == plain.tolist()
    assert len({tuple(row) for row in wanted[:, -14:].tolist()}) > 1
    own = ours.new_cache()[0].own
    assert isinstance(own, Ring if "no" not in name else Growing)


def test_what_is_remembered_does_not_grow(written):
    model = af.load(written["mistral window"])
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.randint(3, 97, (2, 30)), cache=cache)
        for _ in range(5):
            model(torch.randint(3, 97, (2, 1)), cache=cache)
    assert {state.own._keys.shape[2] for state in cache.layers} == {8}
    assert cache.length == 35


RAW = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64,
    "intermediate_size": 100, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 50,
    "max_position_embeddings": 256, "rope_theta": 1e6, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-05, "attention_dropout": 0.0, "transformers_version": "4.36.0",
    "initializer_range": 0.02, "use_cache": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "mixer", "groups"),
    [
        ({}, Window(4095), 8),
        ({"sliding_window": 128}, Window(127), 8),
        ({"sliding_window": None}, Full(), 8),
        ({"num_attention_heads": 4, "num_key_value_heads": None}, Window(4095), 4),
    ],
    ids=str,
)
def test_what_a_file_leaves_out_is_not_what_it_calls_null(fields, mixer, groups):
    tree, origin = read_config({**RAW, **fields})
    older = fields.get("num_key_value_heads", 1) is None  # transformers 5 would have no null there
    theirs = MistralConfig(**{**RAW, **fields, **({"num_key_value_heads": 4} if older else {})})
    attention = tree.decoder.blocks[0].attention
    assert (attention.mixer, attention.groups) == (mixer, groups)
    assert attention.groups == theirs.num_key_value_heads
    window = None if mixer == Full() else mixer.left + 1
    assert window == theirs.sliding_window
    assert write_config(tree, origin)[0] == {**RAW, **fields}  # in its own words


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"sliding_window": "wide"}, "sliding_window='wide'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"is_causal": False}, "is_causal"),
    ],
    ids=str,
)
def test_what_would_change_the_numbers_is_refused_by_name(fields, message):
    with pytest.raises(CheckpointError, match=message):
        read_config({**RAW, **fields})


def test_a_llama_with_a_window_is_written_as_a_mistral():
    llama = af.preset("llama-3.2-1b")
    blocks = tuple(
        replace(b, attention=replace(b.attention, mixer=Window(1023))) for b in llama.decoder.blocks
    )
    raw, origin = write_config(replace(llama, decoder=replace(llama.decoder, blocks=blocks)))
    assert (origin.family, raw["sliding_window"]) == ("mistral", 1024)
    assert write_config(llama)[1].family == "llama"


def test_presets_are_the_published_models():
    for name, size in (("mistral-7b", 7_241_732_096), ("mistral-7b-v0.3", 7_248_023_552)):
        assert af.count(af.preset(name)).parameters == size
    raw, _ = write_config(af.preset("mistral-7b"))
    with torch.device("meta"):
        theirs = MistralForCausalLM(MistralConfig(**raw))
    assert sum(p.numel() for p in theirs.parameters()) == 7_241_732_096
    assert theirs.config.sliding_window == 4096
