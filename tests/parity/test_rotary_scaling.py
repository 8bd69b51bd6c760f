"""Rotary positions scaled for longer texts, against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, MistralForCausalLM

import allformer as af
from allformer.config import (
    DynamicScaling,
    Full,
    LongScaling,
    ProportionalScaling,
    Rotary,
    YarnScaling,
)
from allformer.config.longer import longer
from allformer.core.lean.served import plain_tree
from allformer.core.relatives.rates import gain
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.test_decoders import OLD_LLAMA, llama
from tests.parity.test_generate_families import prompt, talkative
from tests.parity.test_mistral import mistral

YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 500.0, "factor": 4.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.5, 2.5, 4.0, 9.0],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 3.3}
LENGTH = "original_max_position_embeddings"
CASES = [
    llama("yarn", LlamaForCausalLM, rope_parameters={**YARN, LENGTH: 24}),
    mistral(
        "yarn, every option", MistralForCausalLM, head_dim=20, max_position_embeddings=96,
        rope_parameters={
            **YARN, LENGTH: 32, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.7,
            "truncate": False,
        },
    ),
    llama("long, short text", LlamaForCausalLM, rope_parameters={**LONG, LENGTH: 64}),
    llama(
        "long", LlamaForCausalLM, rope_parameters={**LONG, LENGTH: 32, "attention_factor": 1.4}
    ),
    llama("dynamic", LlamaForCausalLM, rope_parameters=DYNAMIC, max_position_embeddings=32),
    mistral("dynamic, short", MistralForCausalLM, rope_parameters=DYNAMIC),
    mistral(
        "proportional", MistralForCausalLM,
        rope_parameters={
            "rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
        },
    ),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    return zoo.write_all(CASES, tmp_path_factory.mktemp("scaled"))


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.fresh_oracle(case)  # what it has read before changes its frequencies
    zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


@each
def test_the_same_numbers(case, written):
    check_forward(case.name, "right", written[case.name])


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


@pytest.mark.parametrize("name", ["llama yarn", "llama long", "llama dynamic"])
def test_the_same_tokens_beyond_the_trained_length(name, tmp_path):
    """24 tokens are read and 14 written: 32 are passed on the way."""
    case = BY_NAME[name]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = {k: x[:1] for k, x in prompt(case, theirs).items()}
    with zoo.unrounded(), torch.no_grad():
        wanted = theirs.generate(**inputs, max_new_tokens=14)
        got = ours.generate(**inputs, max_new_tokens=14)
    assert got.tolist() == wanted.tolist()
    assert plain_tree(ours.config) == (name == "llama yarn"), "kept angles serve no other"


RAW = {**OLD_LLAMA, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"type": "yarn", "factor": 2}, YarnScaling(2.0, 256)),
        ({"type": "yarn", "factor": None, LENGTH: 64}, YarnScaling(4.0, 64)),
        ({"type": "yarn", "factor": 2, "beta_fast": 0, "beta_slow": None}, YarnScaling(2.0, 256)),
        ({"type": "dynamic", "factor": 2}, DynamicScaling(2.0, 256)),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
         ProportionalScaling(0.25, 2.0)),
        ({"rope_type": "longrope", LENGTH: 64, "short_factor": [1] * 4, "long_factor": [2] * 4},
         LongScaling(4.0, 64, (1.0,) * 4, (2.0,) * 4)),
    ],
    ids=str,
)  # fmt: skip
def test_older_files_are_read_as_transformers_reads_them(rope, scaling):
    model, origin = read_config({**RAW, "rope_scaling": rope})
    assert model.decoder.relative == Rotary(10_000.0, scaling, 256)
    assert read_config(write_config(model, origin)[0])[0] == model


def test_the_two_factors_of_deepseek_become_one():
    rope = {"type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.3}
    model, _ = read_config({**RAW, "rope_scaling": rope})
    theirs = LlamaForCausalLM.config_class(**{**RAW, "rope_scaling": rope})
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert gain(model.decoder.relative) == ROPE_INIT_FUNCTIONS["yarn"](theirs)[1]


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4},
         r"LongScaling\.short=\(1\.0,\) must have 4 positive numbers"),
        ({"rope_type": "longrope", "short_factor": ["x"]}, "short_factor=.*a list of numbers"),
        ({"rope_type": "yarn"}, "lacks 'factor'"),
        ({"rope_type": "dynamic", "factor": 2.0, "beta": 1}, "has beta=1 in its rotary"),
        ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, "share=1.5 must be at most"),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(rope, says):
    with pytest.raises(CheckpointError, match=says):
        read_config({**RAW, "rope_parameters": rope})


def test_a_length_that_config_json_cannot_say_is_refused():
    model, _ = read_config({**RAW, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    with pytest.raises(CheckpointError, match="llama: has dynamic rotary positions that begin"):
        write_config(longer(model, 1024, Full()), family="llama")


def test_dynamic_angles_need_two_pairs():
    with pytest.raises(CheckpointError, match="needs heads of 4 features or more, not 2"):
        read_config({**RAW, "head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
