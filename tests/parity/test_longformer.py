"""Longformer against transformers: loud, fp64, disk to disk, with and without global tokens."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    LongformerConfig,
    LongformerForMaskedLM,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    LongformerModel,
)

import allformer as af
from allformer.config import GlobalWindow, Learned, Window
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case, rewrite

SIZES = {
    "vocab_size": 83, "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 34, "max_position_embeddings": 67, "type_vocab_size": 3,
    "attention_window": [8, 4, 24],  # transformers wants each to divide the widest
}  # fmt: skip


def longformer(**more):
    return functools.partial(LongformerConfig, **{**SIZES, **more})


BARE = {"add_pooling_layer": False}
MEASURES = {"num_labels": 3, "problem_type": "regression"}
CASES = [
    Case("bare", LongformerModel, longformer(), labels="none"),
    Case("without pooler", LongformerModel, longformer(), labels="none", options=BARE),
    Case("one window", LongformerModel, longformer(attention_window=6, pad_token_id=4),
         labels="none"),
    Case("wide", LongformerModel, longformer(attention_window=256), labels="none"),
    Case("words", LongformerForMaskedLM, longformer(hidden_act="relu", layer_norm_eps=1e-2)),
    Case("words untied", LongformerForMaskedLM,
         longformer(pad_token_id=0, tie_word_embeddings=False)),
    Case("classes", LongformerForSequenceClassification,
         longformer(num_labels=5, hidden_dropout_prob=0.3), labels="class"),
    Case("measures", LongformerForSequenceClassification, longformer(**MEASURES), labels="class"),
    Case("tokens", LongformerForTokenClassification, longformer(num_labels=6), labels="token"),
    Case("span", LongformerForQuestionAnswering, longformer(num_hidden_layers=1,
         attention_window=[12]), labels="span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("longformers"))


def marks(ids: Tensor) -> Tensor:
    """Some tokens, of unequal number by row, some in padding whichever side it is on."""
    chosen = torch.zeros_like(ids)
    for row, places in enumerate([(0, 5, 6, 30, 59), (1, 50), (0, 3, 40, 57), ()]):
        chosen[row, list(places)] = 1
    return chosen


def batch(case: Case, theirs, side: str) -> dict[str, Tensor]:
    inputs = zoo.batch(case, theirs, side)
    return inputs | {"global_attention_mask": marks(inputs["input_ids"])}


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, batch(case, theirs, side))


def check_training(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, batch(case, theirs, side))
    if theirs.config.problem_type == "regression":
        make = torch.Generator().manual_seed(3)
        inputs["labels"] = torch.randn(4, 3, generator=make, dtype=torch.float64)
    zoo.compare_training(case, af.load(path), theirs, inputs)


@pytest.mark.every(2)
@each
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
def test_the_same_training(name, side, written):
    check_training(name, side, written[name])


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


# --- who is global --------------------------------------------------------------------------------


@pytest.mark.every(2)
@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", ["bare", "words", "classes", "tokens"])
def test_where_no_marks_are_given_the_same_tokens_are_global(name, side, written):
    """Of classes the first, which padding on the left leaves without any; else nobody."""
    check_unmarked(name, side, written[name])


def check_unmarked(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


def question_and_text(ids: Tensor, end: int) -> dict[str, Tensor]:
    """Rows that a tokeniser makes of pairs: three separators, padding on the right."""
    keep = torch.ones_like(ids)
    for row, (question, last) in enumerate([(9, 60), (20, 33), (2, 11), (40, 45)]):
        ids[row, [question, question + 1, last]] = end
        keep[row, last + 1 :] = 0
    return {"input_ids": ids.masked_fill(keep == 0, 1), "attention_mask": keep}


def check_question(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = question_and_text(zoo.batch(case, theirs, "none")["input_ids"], 2)
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, inputs)


def test_the_question_is_global_where_answers_are_looked_for(written):
    check_question("span", "right", written["span"])
    case = BY_NAME["span"]
    theirs, ours = zoo.oracle(case), af.load(written["span"])
    inputs = question_and_text(zoo.batch(case, theirs, "none")["input_ids"], 2)
    with torch.no_grad():
        zoo.compare(case, ours, theirs, inputs | {"attention_mask": torch.ones(4, 61).long()})
    places = {"start_positions": torch.tensor([3, 5, 0, 99])}
    places |= {"end_positions": torch.tensor([9, 40, 2, 0])}
    zoo.compare_training(case, ours, theirs, inputs | places)


def test_everybody_may_be_global_and_nobody(written):
    case = BY_NAME["bare"]
    theirs, ours = zoo.oracle(case), af.load(written["bare"])
    inputs = zoo.batch(case, theirs, "right")
    for some in (torch.ones_like(inputs["input_ids"]), torch.zeros_like(inputs["input_ids"])):
        with torch.no_grad():
            zoo.compare(case, ours, theirs, inputs | {"global_attention_mask": some})


def test_masks_with_holes_given_positions_and_vectors_mean_the_same(written):
    case = BY_NAME["bare"]
    theirs, ours = zoo.oracle(case), af.load(written["bare"])
    inputs = batch(case, theirs, "right")
    inputs["input_ids"][0, 5:9] = theirs.config.pad_token_id
    inputs["attention_mask"][1, :20] = 0
    order = torch.randperm(66, generator=torch.Generator().manual_seed(4))[:61]
    places = {"position_ids": order.expand(inputs["input_ids"].shape)}
    with torch.no_grad():
        zoo.compare(case, ours, theirs, inputs)
        zoo.compare(case, ours, theirs, inputs | places)
        vectors = {"inputs_embeds": theirs.embeddings.word_embeddings(inputs["input_ids"])}
        keep = inputs["attention_mask"].bool()
        rest = {k: v for k, v in inputs.items() if k != "input_ids"} | vectors | places
        mine, reference = zoo.run_both(case, ours, theirs, rest)
    for name in ("last_hidden_state", "pooler_output"):
        a, b = getattr(mine, name), getattr(reference, name)
        zoo.close(*((a[keep], b[keep]) if a.ndim == 3 else (a, b)), case, name)


def test_with_its_softmax_in_single_precision_it_agrees_as_far_as_that_goes(written):
    case = BY_NAME["words"]
    theirs = zoo.oracle(case)
    zoo.compare_as_it_is(case, af.load(written["words"]), theirs, batch(case, theirs, "none"))


# --- files and config.json ------------------------------------------------------------------------

BASE = {  # allenai/longformer-base-4096, in small
    "attention_mode": "longformer", "attention_probs_dropout_prob": 0.1,
    "attention_window": [512, 512], "bos_token_id": 0, "eos_token_id": 2,
    "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 24, "ignore_attention_mask": False, "initializer_range": 0.02,
    "intermediate_size": 48, "layer_norm_eps": 1e-05, "max_position_embeddings": 4098,
    "model_type": "longformer", "num_attention_heads": 4, "num_hidden_layers": 2,
    "pad_token_id": 1, "sep_token_id": 2, "type_vocab_size": 1, "vocab_size": 99,
    "architectures": ["LongformerForMaskedLM"],
}  # fmt: skip


def test_the_published_config_is_read_and_written_back_field_by_field():
    model, origin = read_config(BASE)
    again, _ = write_config(model, origin)
    assert {name: again[name] for name in BASE} == BASE
    plain, _ = write_config(model)
    assert plain["model_type"] == "longformer"
    assert read_config(plain)[0] == model


def test_absent_fields_have_transformers_defaults():
    short = {"architectures": ["LongformerModel"], "model_type": "longformer"}
    whole = {**LongformerConfig().to_dict(), **short}
    assert read_config(short)[0] == read_config(whole)[0]


def test_files_of_older_versions_are_read(written, tmp_path):
    def old(tensors):
        return tensors | {
            "longformer.embeddings.position_ids": torch.arange(67)[None],
            "lm_head.decoder.weight": tensors["longformer.embeddings.word_embeddings.weight"] + 0.0,
            "lm_head.decoder.bias": tensors["lm_head.bias"].clone(),
            "longformer.pooler.dense.weight": torch.ones(21, 21).double(),
            "longformer.pooler.dense.bias": torch.ones(21).double(),
        }

    check_forward("words", "right", rewrite(written["words"], tmp_path / "old", old))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attention_window": [512]}, "attention_window for 1 layers, but there are 2"),
        ({"attention_window": [512, 7]}, r"attention_window=\[512, 7\], which must be an even"),
        ({"attention_window": 0}, "attention_window=0, which must be an even whole number"),
        ({"pad_token_id": None}, "no pad_token_id.*Longformer numbers its positions by it"),
        ({"attention_dilation": [1, 2]}, "attention_dilation=.*does not know for a longformer"),
        (
            {"architectures": ["LongformerForQuestionAnswering"], "sep_token_id": 3},
            "sep_token_id=3, which is not eos_token_id=2",
        ),
        (
            {"architectures": ["LongformerForMultipleChoice"], "sep_token_id": 3},
            "answers or choices finds the question by it",
        ),
        ({"architectures": ["LongformerForCausalLM"]}, "supported are LongformerModel"),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(change, says):
    with pytest.raises(CheckpointError, match=says):
        read_config(BASE | change)


def test_a_fresh_model_opens_in_transformers_and_gives_the_same_numbers(tmp_path):
    config, _ = read_config({**BASE, "architectures": ["LongformerModel"]})
    model = af.build(config, seed=0).double().eval()
    af.save(model, tmp_path)
    theirs = AutoModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(4, 99, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), zoo.unrounded():
        mine, reference = model(ids), theirs(ids)
    torch.testing.assert_close(mine.pooler_output, reference.pooler_output, rtol=0, atol=1e-10)


def test_presets_are_transformers_models_of_the_same_size():
    for name, size in (("base", 148_659_456), ("large", 434_600_960)):
        tree = af.preset(f"longformer-{name}-4096")
        raw, _ = write_config(tree)
        with torch.device("meta"):
            theirs = LongformerModel(LongformerConfig(**raw))
        assert af.count(tree).parameters == sum(p.numel() for p in theirs.parameters()) == size
        assert tree.encoder.position == Learned(4096, offset=2, count="ids")
        assert {b.attention.mixer for b in tree.encoder.blocks} == {GlobalWindow(256, 256)}


def _mixed(tree, mixer):
    block = tree.encoder.blocks[0]
    block = replace(block, attention=replace(block.attention, mixer=mixer))
    return replace(tree, encoder=replace(tree.encoder, blocks=(block,) * 12))


def test_a_tree_of_none_of_them_says_why():
    tree = af.preset("longformer-base-4096")
    with pytest.raises(CheckpointError, match="longformer: has no windows with global tokens"):
        write_config(_mixed(tree, Window(256, 256)))
    with pytest.raises(CheckpointError, match=r"bert: projects q, k, v, q_global.*and its files 3"):
        write_config(_mixed(tree, GlobalWindow(3, 5)))
