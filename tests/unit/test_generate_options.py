"""GenerationConfig: transformers' names and defaults, files in both directions, named refusals."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy
import pytest
import torch
import transformers

from allformer.core.model import build
from allformer.errors import CheckpointError, ConfigError
from allformer.generate.checks import RULES
from allformer.generate.generate import generate
from allformer.generate.options import DEFAULTS, GenerationConfig, names, settle
from allformer.generate.refused import INERT, REFUSED
from tests.models import decoder_only, tokens

FULL = {
    "max_new_tokens": 9, "max_length": 30, "min_new_tokens": 2, "min_length": 3, "max_time": 5.0,
    "stop_strings": ["x", "yz"], "num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.6,
    "early_stopping": "never", "use_cache": True, "do_sample": True, "temperature": 0.7,
    "top_h": 0.4, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8,
    "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "repetition_penalty": 1.2,
    "encoder_repetition_penalty": 1.1, "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 4, "bad_words_ids": [[5], [6, 7]],
    "sequence_bias": [[[5, 6], -2.0], [[7], 1.5]], "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [3], "forced_bos_token_id": 8,
    "forced_decoder_ids": [[1, None], [2, 5]], "forced_eos_token_id": [3, 4],
    "exponential_decay_length_penalty": [4, 1.1], "remove_invalid_values": True,
    "renormalize_logits": True, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": [3, 9],
    "decoder_start_token_id": 2, "return_dict_in_generate": True, "output_scores": True,
    "output_logits": True, "prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3,
    "num_assistant_tokens": 6, "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.3,
}  # fmt: skip


def test_every_option_goes_to_the_file_and_back(tmp_path):
    assert set(FULL) == names()
    config = GenerationConfig.from_dict(FULL)
    assert config.to_dict() == dict(sorted(FULL.items()))
    config.save(tmp_path / "new")
    assert GenerationConfig.load(tmp_path / "new") == config
    assert hash(GenerationConfig.load(tmp_path / "new")) == hash(config)


def test_transformers_reads_what_is_written_and_the_other_way(tmp_path):
    GenerationConfig.from_dict(FULL).save(tmp_path)
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    for name, value in FULL.items():
        assert getattr(theirs, name) == value, name
    theirs.save_pretrained(tmp_path)
    again = GenerationConfig.load(tmp_path)
    assert again.set() == GenerationConfig.from_dict(FULL).set()
    assert set(again.other) <= {"transformers_version", "_from_model_config"}


def test_every_name_that_transformers_has_is_known_one_way_or_the_other():
    theirs = set(transformers.GenerationConfig().to_dict())
    assert theirs - names() - set(REFUSED) - INERT == set()
    assert not names() & (set(REFUSED) | INERT)
    assert not set(REFUSED) & INERT


def test_the_defaults_are_transformers():
    theirs = transformers.GenerationConfig._get_default_generation_params()
    for name, value in theirs.items():
        if name in names() - {"max_length"} and value not in (None, False):
            assert DEFAULTS[name] == value, name
    assert {k: v for k, v in DEFAULTS.items() if theirs[k] != v} == {}
    assert all(getattr(GenerationConfig(), name) is None for name in names())


def test_what_else_stands_in_a_file_is_kept(tmp_path):
    data = {"transformers_version": "4.30.0", "_from_model_config": True, "chat_format": "x",
            "num_beams": 2}  # fmt: skip
    config = GenerationConfig.from_dict(data)
    assert config.set() == {"num_beams": 2}
    assert config.to_dict() == dict(sorted(data.items()))
    settle(config, options={})  # and does no harm


def test_what_a_checkpoint_asks_and_we_cannot_do_is_refused_when_it_matters():
    config = GenerationConfig.from_dict({"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 1})
    net = build(decoder_only(), seed=0).eval()
    with pytest.raises(ConfigError, match=r"penalty_alpha=0.6 is not supported; leave it out"):
        generate(net, tokens(1, 3), generation=config)
    assert generate(net, tokens(1, 3), generation=config, penalty_alpha=None).shape == (1, 4)


@pytest.mark.parametrize("name", REFUSED)
def test_each_refused_name_has_a_way_out_and_a_neutral_value(name):
    with pytest.raises(ConfigError, match=f"^{name}=.* is not supported; "):
        settle(options={name: "quantized"})
    settle(options={name: None})


def test_older_checkpoints_keep_their_options_in_the_model_config(tmp_path):
    raw = {
        "model_type": "bart", "vocab_size": 99, "num_beams": 4, "max_length": 142, "min_length": 56,
        "no_repeat_ngram_size": 3, "length_penalty": 2.0, "early_stopping": True, "bos_token_id": 0,
        "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, "task_specific_params":
        {"summarization": {"num_beams": 6}}, "output_past": True, "output_hidden_states": True,
        "force_bos_token_to_be_generated": True, "forced_eos_token_id": None, "num_beam_groups": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = GenerationConfig.load(tmp_path)
    assert config.set() == {
        "num_beams": 4, "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3,
        "length_penalty": 2.0, "early_stopping": True, "bos_token_id": 0, "eos_token_id": 2,
        "pad_token_id": 1, "decoder_start_token_id": 2, "forced_bos_token_id": 0,
    }  # fmt: skip
    theirs = transformers.GenerationConfig.from_model_config(dict(raw))
    assert {k: getattr(theirs, k) for k in config.set()} == config.set()
    nested = {
        "text_config": {"eos_token_id": 7, "num_beams": 2},
        "num_beams": 3,
        "pad_token_id": None,
    }
    assert GenerationConfig.from_model_config(nested).set() == {"eos_token_id": 7, "num_beams": 3}
    # the file of its own wins
    GenerationConfig(num_beams=2).save(tmp_path)
    assert GenerationConfig.load(tmp_path).set() == {"num_beams": 2}
    assert GenerationConfig.load(tmp_path / "nowhere") == GenerationConfig()


def test_a_damaged_file_is_named(tmp_path):
    file = tmp_path / "generation_config.json"
    file.write_text('{"num_beams": 4')
    with pytest.raises(CheckpointError, match=r"generation_config\.json is not JSON"):
        GenerationConfig.load(tmp_path)
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="it must be an object of options"):
        GenerationConfig.load(tmp_path)
    file.write_text('{"num_beams": "four"}')
    with pytest.raises(ConfigError, match=r"generation_config\.json: num_beams='four' must be"):
        GenerationConfig.load(tmp_path)


def test_tensors_and_arrays_are_taken_as_numbers():
    config = GenerationConfig(
        eos_token_id=torch.tensor([3, 4]),
        pad_token_id=numpy.int64(0),
        suppress_tokens=numpy.arange(2),
    )
    assert config.to_dict() == {
        "eos_token_id": [3, 4],
        "pad_token_id": 0,
        "suppress_tokens": [0, 1],
    }
    assert GenerationConfig(sequence_bias={(5, 6): -2.0}) == GenerationConfig(
        sequence_bias=[[[5, 6], -2.0]]
    )


def test_every_option_has_a_rule():
    assert set(RULES) == names()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_new_tokens", 0), ("max_new_tokens", 2.0), ("max_length", -1), ("num_beams", True),
        ("min_length", -1), ("top_k", 1.5), ("max_time", 0), ("temperature", math.inf),
        ("temperature", "hot"), ("top_p", 1.1), ("min_p", -0.1), ("typical_p", 0), ("top_h", 2),
        ("epsilon_cutoff", 1.0), ("eta_cutoff", -1), ("early_stopping", "always"),
        ("do_sample", 1), ("repetition_penalty", 0.0), ("length_penalty", math.nan),
        ("length_penalty", -51),
        ("pad_token_id", [1]), ("eos_token_id", []), ("eos_token_id", "</s>"),
        ("suppress_tokens", 5), ("suppress_tokens", [-1]), ("bad_words_ids", [5]),
        ("bad_words_ids", [[]]), ("sequence_bias", [[5, 1.0]]), ("sequence_bias", {"(5,)": 1.0}),
        ("num_beams", 10**6), ("max_new_tokens", 10**30), ("sequence_bias", {(5,): math.inf}),
        ("sequence_bias", {(5,): True}),
        ("exponential_decay_length_penalty", 1.1), ("stop_strings", ""), ("stop_strings", ["a", 1]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(name, wrong):
    with pytest.raises(ConfigError, match=rf"^{name}=.*; "):
        GenerationConfig(**{name: wrong})


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_no_option_that_is_a_number_may_be_none(wrong):
    for each in fields(GenerationConfig):
        if "float" in str(each.type):
            value = (10, wrong) if "tuple" in str(each.type) else wrong
            with pytest.raises(ConfigError, match=rf"^{each.name}=.*; "):
                GenerationConfig(**{each.name: value})
    if wrong != -math.inf:  # which forbids a token
        with pytest.raises(ConfigError, match=r"^sequence_bias="):
            GenerationConfig(sequence_bias={(5,): wrong})


def test_the_advice_for_a_temperature_is_a_temperature():
    with pytest.raises(
        ConfigError, match="temperature=-1 must be a number above 0; below 1 is saf"
    ):
        GenerationConfig(temperature=-1)


def test_a_token_that_is_forced_and_forbidden_is_refused():
    with pytest.raises(ConfigError, match="forced_eos_token_id=3 is also in suppress_tokens"):
        GenerationConfig(forced_eos_token_id=3, suppress_tokens=[3, 4])
    GenerationConfig(forced_eos_token_id=[3, 5], suppress_tokens=[3, 4])


def test_ids_below_zero_mean_none():
    """Checkpoints of LLaMA 1 have pad_token_id=-1."""
    net = build(decoder_only(), seed=0).eval()
    plain = generate(net, tokens(2, 3), max_new_tokens=4, pad_token_id=None, eos_token_id=None)
    out = generate(net, tokens(2, 3), max_new_tokens=4, pad_token_id=-1, eos_token_id=-1)
    assert out.tolist() == plain.tolist()
