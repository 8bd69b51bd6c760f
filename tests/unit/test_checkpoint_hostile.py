"""Checkpoints that are damaged or mean harm: one clear error, before memory is taken.

`tests/fuzz` finds such; what it found stands here by name.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import allformer as af
from allformer.checkpoint.load import read_json
from allformer.errors import AllformerError, CheckpointError, ConfigError, DataError
from allformer.json_file import DEEPEST
from allformer.text.cutting import copy_tokenizer
from allformer.text.load import load_tokenizer
from tests import tiny
from tests.tiny import checkpoint  # noqa: F401


@pytest.fixture
def gpt2(checkpoint, tmp_path) -> Path:  # noqa: F811
    """A GPT-2 of one's own to damage."""
    for file in checkpoint("gpt2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"vocab_size": 10**9}, "describes a model of .* parameters, but .* holds"),
        ({"n_layer": 10_000}, "describes a model of .* parameters, but .* holds"),
        ({"n_embd": 2**28}, "describes a model of .* parameters, but .* holds"),
        ({"n_embd": 2**31}, "must be at most 2,147,483,647"),
        ({"n_embd": 10**12}, r"n_embd=1000000000000, which must be a whole number"),
        ({"n_head": 0}, "n_head=0, which must be a whole number from 1"),
        ({"architectures": "GPT2Model"}, "architectures='GPT2Model', which must be a list"),
        ({"model_type": 3}, "model_type=3, which must be a text"),
    ],
)
def test_a_config_larger_than_its_files_is_refused_before_it_is_built(gpt2, fields, says):
    tiny.edit(gpt2 / "config.json", **fields)
    with pytest.raises(CheckpointError, match=says):
        af.load(gpt2)


def test_our_own_layout_is_measured_too(gpt2, tmp_path):
    af.save(af.load(gpt2), tmp_path / "own", family="allformer")
    text = (tmp_path / "own" / "config.json").read_text()
    raw = json.loads(text)
    for vocab, says in ((10**9, "describes a model of"), (10**12, "must be at most 2,147,483,647")):
        raw["decoder"]["source"]["vocab"] = vocab
        (tmp_path / "own" / "config.json").write_text(json.dumps(raw))
        with pytest.raises(CheckpointError, match=says):
            af.load(tmp_path / "own")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is nested deeper"),
        ('{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1), "is nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"a": "\\ud800"}', "is not JSON"),
        ("\ufeff{}", "is not JSON"),
        ("[]", "holds no JSON object but a list"),
        ("", "is not JSON"),
    ],
)
def test_json_that_no_program_can_walk_is_named(tmp_path, text, says):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"config\.json {says}"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("name", ["x" * 5000, "ä" * 200, "a\0b", "../model.safetensors"])
def test_a_shard_with_a_name_that_no_system_takes_is_refused(gpt2, name):
    (gpt2 / "model.safetensors").rename(gpt2 / "shard.safetensors")
    index = {"weight_map": dict.fromkeys(load_file(gpt2 / "shard.safetensors"), name)}
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="a shard must lie beside its index"):
        af.load(gpt2)


@pytest.mark.parametrize(
    "make",
    [lambda x: x.to("meta"), lambda x: torch.zeros(1).expand(2**40), lambda x: (x + 0j).conj()],
    ids=["meta", "one number 2^40 times", "conjugate"],
)
def test_a_bin_whose_tensors_have_no_numbers_of_their_own_is_refused(gpt2, make):
    tensors = load_file(gpt2 / "model.safetensors")
    (gpt2 / "model.safetensors").unlink()
    tensors["transformer.wte.weight"] = make(tensors["transformer.wte.weight"])
    torch.save(tensors, gpt2 / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"more than tensors by name: 'transformer\.wte"):
        af.load(gpt2)


@pytest.mark.parametrize(
    "options", [{"max_new_tokens": 10**9}, {"max_length": 10**7}, {"num_beams": 10**6}]
)
def test_a_generation_config_that_would_run_for_days_is_refused(gpt2, options):
    (gpt2 / "generation_config.json").write_text(json.dumps(options))
    model = af.load(gpt2)
    with pytest.raises(ConfigError, match="and at most a "):
        model.generate(torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    ("field", "value", "must_be"),
    [
        ("model_max_length", "512", "a number"),
        ("tokenizer_class", 3, "a text"),
        ("additional_special_tokens", True, "a list of tokens"),
        ("extra_ids", 10**9, "a whole number from 0 to 10,000"),
        ("chat_template", 1.5, "a text, or a list of named ones"),
        ("chat_template", [[1]], "a text, or a list of named ones"),
        ("added_tokens_decoder", {"a": {"content": "x"}}, "a whole number"),
        ("model_input_names", "input_ids", "a list of texts"),
        ("add_prefix_space", "no", "true or false"),
    ],
)
def test_a_setting_of_the_tokeniser_of_the_wrong_type_is_named(gpt2, field, value, must_be):
    tiny.edit(gpt2 / "tokenizer_config.json", **{field: value})
    with pytest.raises(DataError, match=must_be):
        load_tokenizer(gpt2)


@pytest.mark.parametrize("limit", [10**30, 1e30, float("inf"), -1])
def test_no_limit_of_a_length_is_written_in_many_ways(gpt2, limit):
    tiny.edit(gpt2 / "tokenizer_config.json", model_max_length=limit)
    assert load_tokenizer(gpt2).model_max_length is None


def test_a_vocabulary_with_a_great_gap_is_refused(gpt2):
    vocab = json.loads((gpt2 / "vocab.json").read_text())
    vocab[next(iter(vocab))] = 4_000_000_000
    (gpt2 / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(DataError, match="ids must run without great gaps"):
        load_tokenizer(gpt2)


def test_an_empty_vocabulary_is_refused(gpt2):
    (gpt2 / "vocab.json").write_text("{}")
    with pytest.raises(AllformerError):
        load_tokenizer(gpt2)


@pytest.mark.parametrize("path", ["x" * 5000, "~nobody-of-this-name/x"])
def test_a_path_that_cannot_be_is_refused_in_words(path):
    with pytest.raises(CheckpointError, match="is no path"):
        af.load(path)


class PanicException(BaseException):
    """As the tokenizers library has it: no Exception."""


def test_a_tokeniser_that_panics_is_refused_in_words():
    class Inner:
        def to_str(self):
            raise PanicException("range end index 15 out of range")

    with pytest.raises(DataError, match=r"cannot be copied \(range end .*may have one id"):
        copy_tokenizer(Inner())
