"""GPT-2 and LLaMA against transformers: disk to disk, loud, fp64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
)

import allformer as af
from allformer.config import DecoderOnly, Full, LinearScaling, Llama3Scaling, Rotary, Window
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case, rewrite

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, **SPECIAL,
}  # fmt: skip
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, **SPECIAL}
STRETCHED = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
SQUEEZED = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


def llama(name: str, model: type, labels: str = "words", **changes: object) -> Case:
    return Case(f"llama {name}", model, lambda: LlamaConfig(**{**LLAMA, **changes}), labels=labels)


def gpt2(name: str, model: type, labels: str = "words", **changes: object) -> Case:
    config = {**GPT2, **changes}
    return Case(f"gpt2 {name}", model, lambda: GPT2Config(**config), labels=labels, positions=True)


CASES = [
    llama("grouped queries", LlamaForCausalLM),
    llama(
        "every option", LlamaForCausalLM, head_dim=20, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=True, hidden_act="gelu", rope_parameters=STRETCHED, rms_norm_eps=1e-3,
    ),
    llama("one key head", LlamaForCausalLM, num_key_value_heads=1, hidden_act="gelu_new"),
    llama("bare, squeezed", LlamaModel, "none", rope_parameters=SQUEEZED),
    llama("classes", LlamaForSequenceClassification, "class", num_labels=3),
    llama("tags", LlamaForTokenClassification, "token", num_labels=5),
    llama("answers", LlamaForQuestionAnswering, "span"),
    gpt2("plain", GPT2LMHeadModel),
    gpt2(
        "every option", GPT2LMHeadModel, n_inner=50, scale_attn_by_inverse_layer_idx=True,
        activation_function="relu", tie_word_embeddings=False, layer_norm_epsilon=1e-3,
    ),
    gpt2("bare, unscaled", GPT2Model, "none", scale_attn_weights=False),
    gpt2("classes", GPT2ForSequenceClassification, "class", num_labels=3),
    gpt2("tags", GPT2ForTokenClassification, "token", num_labels=5),
    gpt2("answers", GPT2ForQuestionAnswering, "span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("decoders"))


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


def check_training(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, zoo.batch(case, theirs, side))
    zoo.compare_training(case, af.load(path), theirs, inputs)


@each
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


@each
def test_the_same_numbers_with_their_roundings(case, written):
    theirs = zoo.oracle(case)
    inputs = zoo.batch(case, theirs, "none")
    zoo.compare_as_it_is(case, af.load(written[case.name]), theirs, inputs)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
def test_the_same_training(name, side, written):
    check_training(name, side, written[name])


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


# --- dialects and old files -----------------------------------------------------------------------

OLD_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 100, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "torch_dtype": "float16",
    "pad_token_id": -1, "pretraining_tp": 1, "use_cache": True, "bos_token_id": 1,
    "eos_token_id": [2, 3], "transformers_version": "4.31.0.dev0", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "rotary"),
    [
        ({}, Rotary(10_000.0, None, 256)),
        ({"rope_theta": 500_000.0, "rope_scaling": None}, Rotary(500_000.0, None, 256)),
        ({"rope_scaling": {"type": "linear", "factor": 2}},
         Rotary(10_000.0, LinearScaling(2.0), 256)),
        ({"rope_theta": 5e5, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128}},
         Rotary(5e5, Llama3Scaling(8.0, 1.0, 4.0, 128), 256)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}, Rotary(9.0, None, 256)),
    ],
)  # fmt: skip
def test_both_dialects_of_rotary_parameters_are_read(fields, rotary):
    model, origin = read_config({**OLD_LLAMA, **fields})
    assert model.decoder.relative == rotary
    assert model.decoder.source.pad_id is None, "−1 is no token"
    assert model.decoder.source.eos_id == 2
    raw, _ = write_config(model, origin)
    assert raw["eos_token_id"] == [2, 3], "a list of ends is written back"
    assert LlamaConfig(**raw).rope_parameters["rope_theta"] == rotary.theta


@pytest.mark.parametrize(
    ("older", "newer"),
    [(SQUEEZED, STRETCHED), (STRETCHED, SQUEEZED), ({}, STRETCHED), (None, SQUEEZED)],
)
def test_of_two_dialects_side_by_side_that_of_transformers_choice_counts(
    older, newer, written, tmp_path
):
    case = BY_NAME["llama grouped queries"]
    both = {"rope_scaling": older, "rope_parameters": newer}
    path = rewrite(written[case.name], tmp_path / "both", lambda t: t, both)
    theirs = LlamaForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
    zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, "right"))


@pytest.mark.parametrize("value", [False, None, 0, "no"])
@pytest.mark.parametrize("base", [OLD_LLAMA, {"model_type": "gpt2"}, {"model_type": "t5"},
                                  {"model_type": "bart"}])  # fmt: skip
def test_a_decoder_that_looks_both_ways_is_refused(base, value):
    with pytest.raises(CheckpointError, match=r"config\.json has is_causal="):
        read_config({**base, "is_causal": value})
    read_config({**base, "is_causal": True})
    read_config({**base, "is_causal": False}, ignore=["is_causal"])
    read_config({"model_type": "bert", "is_causal": False})  # means nothing there


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rope_scaling": {"type": "axial", "factor": 2.0}}, "of kind 'axial', which is not supp"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "'partial'"),
        ({"rope_parameters": {"rope_type": "default", "beta": 3}}, "has beta=3 in its rotary"),
        ({"sliding_window": 128}, "config.json has sliding_window=128, which allformer does not"),
        ({"num_local_experts": 4}, r"load\(…, ignore=\['num_local_experts'\]\) goes on without"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config="),
        ({"auto_map": {"AutoModel": "x.Y"}}, "has auto_map="),
        ({"hidden_act": "xielu"}, "has hidden_act='xielu', which is not known; try relu"),
        ({"num_key_value_heads": 3}, "kv_heads=3 must divide heads=4"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers=.two., which must be a number of layers"),
        ({"hidden_size": None}, "config.json lacks 'hidden_size'"),
        ({"architectures": ["LlamaForX"]}, "supported are LlamaForCausalLM, LlamaModel"),
        ({"model_type": "mamba"}, "model_type='mamba', which is no family that allformer knows"),
    ],
)
def test_a_field_that_would_change_the_numbers_is_refused_by_name(fields, says):
    with pytest.raises(CheckpointError, match=says):
        read_config({**OLD_LLAMA, **fields})


def test_a_field_can_be_overlooked_on_purpose():
    model, origin = read_config({**OLD_LLAMA, "sliding_window": 128}, ignore=["sliding_window"])
    assert isinstance(model, DecoderOnly)
    assert "sliding_window" not in write_config(model, origin)[0]


def test_gpt2_files_without_the_prefix_and_with_stored_masks_are_read(written, tmp_path):
    def old(tensors):
        out = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        for i in range(3):
            out[f"h.{i}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
            out[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        return out

    path = rewrite(written["gpt2 plain"], tmp_path / "old", old)
    check_forward("gpt2 plain", "right", path)


def test_llama_files_with_stored_frequencies_are_read_and_wrong_ones_refused(written, tmp_path):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    right = 1 / 10_000 ** (torch.arange(0, 8, 2).double() / 8)
    good = rewrite(
        written["llama grouped queries"], tmp_path / "good", lambda t: t | {name: right.half()}
    )
    check_forward("llama grouped queries", "none", good)
    bad = rewrite(
        written["llama grouped queries"], tmp_path / "bad", lambda t: t | {name: right * 2}
    )
    with pytest.raises(CheckpointError, match="inv_freq"):
        af.load(bad)


def test_frequencies_are_overlooked_where_they_say_nothing(written, tmp_path):
    """Those of the whole model; and those of layers beside a scaling, which acted elsewhere when
    files held them."""
    whole = {"model.rotary_emb.inv_freq": torch.ones(4)}
    path = rewrite(written["llama grouped queries"], tmp_path / "whole", lambda t: t | whole)
    check_forward("llama grouped queries", "none", path)
    plain = 1 / 10_000 ** (torch.arange(0, 8, 2).float() / 8)
    each = {f"layers.{i}.self_attn.rotary_emb.inv_freq": plain + 0 for i in range(3)}
    path = rewrite(written["llama bare, squeezed"], tmp_path / "each", lambda t: t | each)
    check_forward("llama bare, squeezed", "none", path)


def test_a_vector_of_a_masks_name_is_no_mask(written, tmp_path):
    learned = {"transformer.h.0.attn.bias": torch.ones(48)}
    path = rewrite(written["gpt2 plain"], tmp_path / "odd", lambda t: t | learned)
    with pytest.raises(CheckpointError, match=r"unexpected: transformer\.h\.0\.attn\.bias"):
        af.load(path)


def test_a_tied_checkpoint_with_another_output_matrix_is_refused(written, tmp_path):
    path = rewrite(
        written["gpt2 plain"],
        tmp_path / "untied",
        lambda t: t | {"lm_head.weight": t["transformer.wte.weight"] + 1},
    )
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        af.load(path)
    same = rewrite(
        written["gpt2 plain"],
        tmp_path / "tied",
        lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].clone()},
    )
    check_forward("gpt2 plain", "none", same)


def test_a_bare_model_can_be_taken_from_a_file_with_a_head(written):
    case = BY_NAME["gpt2 bare, unscaled"]
    model = af.load(written["gpt2 classes"], architecture="GPT2Model")
    theirs = GPT2Model.from_pretrained(written["gpt2 classes"]).double().eval()
    zoo.compare(case, model, theirs, zoo.batch(case, theirs, "right"))
    with pytest.raises(CheckpointError, match="missing"):
        af.load(written["gpt2 classes"], architecture="GPT2ForQuestionAnswering")


# --- GPT-3 and counts -----------------------------------------------------------------------------

COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
}


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_number_of_parameters(name):
    assert af.count(af.preset(name)).parameters == COUNTS[name]


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "llama-7b", "llama-2-70b", "llama-3.1-8b"])
def test_presets_are_transformers_models_of_the_same_size(name):
    raw, origin = write_config(af.preset(name))
    kind, config = (
        (GPT2LMHeadModel, GPT2Config) if "gpt2" in name else (LlamaForCausalLM, LlamaConfig)
    )
    with torch.device("meta"):
        theirs = kind(config(**raw))
    assert raw["architectures"] == [kind.__name__] == [origin.architecture]
    assert af.count(af.preset(name)).parameters == sum(p.numel() for p in theirs.parameters())


def test_gpt3_alternates_full_and_windowed_attention_and_is_gpt2_where_the_window_is_wide():
    blocks = af.preset("gpt3-175b").decoder.blocks
    assert [b.attention.mixer for b in blocks[:4]] == [Full(), Window(255), Full(), Window(255)]
    assert 174e9 < af.count(af.preset("gpt3-175b")).parameters < 176e9
    with pytest.raises(CheckpointError, match="no family of transformers can say this model"):
        write_config(af.preset("gpt3-small"))
