"""Heads that choose among texts, of five families, against transformers: loud, fp64, disk to disk.

Questions of two choices each, of unequal length, padded on either side.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMultipleChoice,
    BertConfig,
    BertForMultipleChoice,
    BigBirdConfig,
    BigBirdForMultipleChoice,
    LongformerConfig,
    LongformerForMultipleChoice,
    RobertaConfig,
    RobertaForMultipleChoice,
)

import allformer as af
from allformer.config import ChoiceHead, EncoderOnly, LMHead, Pool
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.models import stack
from tests.parity import zoo
from tests.parity.zoo import Case

SIZES = {
    "vocab_size": 83, "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 34, "max_position_embeddings": 67, "type_vocab_size": 3,
}  # fmt: skip
WINDOWS = {"attention_window": [8, 4, 24]}
BLOCKS = {"block_size": 4, "num_random_blocks": 2}


def case(name, model, kind, **more):
    return Case(name, model, functools.partial(kind, **{**SIZES, **more}), labels="choice")


CASES = [
    case("bert", BertForMultipleChoice, BertConfig, classifier_dropout=0.3),
    case("roberta", RobertaForMultipleChoice, RobertaConfig, classifier_dropout=0.3),
    case("albert", AlbertForMultipleChoice, AlbertConfig, embedding_size=13),
    case("longformer", LongformerForMultipleChoice, LongformerConfig, **WINDOWS),
    case("bird", BigBirdForMultipleChoice, BigBirdConfig, **BLOCKS),
]
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("choices"))


def batch(case: Case, theirs, side: str) -> dict[str, torch.Tensor]:
    """Longformer's global tokens are given."""
    inputs = zoo.batch(case, theirs, side)
    if case.name == "longformer":
        marks = torch.zeros_like(inputs["input_ids"])
        marks[:, :, ::9] = 1
        marks[0, 1] = 0
        inputs["global_attention_mask"] = marks
    return inputs


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, batch(case, theirs, side))


def check_training(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, batch(case, theirs, side))
    zoo.compare_training(case, af.load(path), theirs, inputs)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@each
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


@pytest.mark.parametrize("side", ["right", "left"])
@each
def test_the_same_training(case, side, written):
    check_training(case.name, side, written[case.name])


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


def check_unmarked(path: Path) -> None:
    """Longformer's own choice: what stands behind the question and its two separators is global."""
    case = BY_NAME["longformer"]
    theirs, ours = zoo.oracle(case), af.load(path)
    ids, keep = zoo.batch(case, theirs, "none")["input_ids"], torch.ones(2, 2, 61).long()
    for row, (question, last) in enumerate([(9, 60), (20, 33), (2, 11), (40, 45)]):
        ids.flatten(0, 1)[row, [question, question + 1, last]] = 2
        keep.flatten(0, 1)[row, last + 1 :] = 0
    inputs = {"input_ids": ids.masked_fill(keep == 0, 1), "attention_mask": keep}
    with torch.no_grad():
        zoo.compare(case, ours, theirs, inputs)
    marks = torch.zeros_like(ids)
    marks[0, 0, 11:] = marks[0, 1, 22:] = marks[1, 0, 4:] = marks[1, 1, 42:] = 1
    with torch.no_grad():
        plain, told = ours(**inputs), ours(**inputs, global_attention_mask=marks)
    torch.testing.assert_close(plain.logits, told.logits, rtol=0, atol=1e-12)


def test_what_follows_the_question_is_global(written):
    check_unmarked(written["longformer"])


def test_one_separator_behind_the_question_is_enough_for_longformer(written):
    """BERT's pairs; all of what follows is global, its first token too."""
    ours = af.load(written["longformer"])
    ids = torch.randint(4, 83, (1, 2, 20), generator=torch.Generator().manual_seed(0))
    ids[..., 7] = ids[..., 19] = 2
    marks = torch.zeros_like(ids)
    marks[..., 8:] = 1
    with torch.no_grad():
        plain, told = ours(ids), ours(ids, global_attention_mask=marks)
    assert torch.equal(plain.logits, told.logits)
    with pytest.raises(ConfigError, match=r"1 of the separator 2 \(Tokens.eos_id\).*question is"):
        ours(ids.masked_fill(torch.arange(20) == 7, 5))


@each
def test_presets_have_a_head_for_it_that_transformers_opens(case):
    """Without weights. Only BERT and ALBERT have a dropout of its own."""
    check_dropout(case.name)


def check_dropout(name: str) -> None:
    case = BY_NAME[name]
    said = {"model_type": case.config().model_type, "architectures": [case.model.__name__]}
    told = {"classifier_dropout_prob" if name == "albert" else "classifier_dropout": 0.3}
    tree, _ = read_config({**said, **told, "hidden_dropout_prob": 0.2})
    assert tree.head == ChoiceHead(0.3 if name in ("bert", "albert") else 0.2)
    raw, _ = write_config(tree)
    assert raw["architectures"] == [case.model.__name__]
    assert read_config(raw)[0] == tree


def test_the_dropout_that_no_file_can_say_is_refused():
    tree, origin = read_config({"model_type": "roberta",
                                "architectures": ["RobertaForMultipleChoice"]})  # fmt: skip
    with pytest.raises(CheckpointError):
        write_config(replace(tree, head=ChoiceHead(0.5)), origin)


# --- shapes ---------------------------------------------------------------------------------------

IDS = torch.randint(4, 37, (2, 3, 7), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def small():
    return af.build(EncoderOnly(stack(dropout=0.0), ChoiceHead(), Pool()), seed=0).double().eval()


def check_shapes(small) -> None:
    """Choices one below the other are the same as questions × choices; so are vectors."""
    labels = torch.tensor([2, -100])
    out = small(IDS, labels=labels)
    flat = small(IDS.flatten(0, 1), labels=labels)
    assert out.logits.shape == (2, 3)
    assert flat.logits.shape == (6, 1)
    assert torch.equal(out.logits.flatten(), flat.logits.flatten())
    assert out.loss == flat.loss
    torch.testing.assert_close(out.loss, -out.logits.log_softmax(1)[0, 2])
    vectors = small.encoder.source.embedding.weight[IDS] * 24**0.5
    vectors = small(inputs_embeds=vectors, labels=labels)
    torch.testing.assert_close(vectors.logits, out.logits)
    torch.testing.assert_close(small(IDS, states=False).logits, out.logits)
    assert af.trace(small, input_ids=IDS)["head.logits"].shape == (6, 1)


def test_choices_are_rows_or_an_axis(small):
    check_shapes(small)


@pytest.mark.parametrize(
    ("ids", "more", "says"),
    [
        (IDS, {"labels": torch.tensor([0, 1, 2])}, r"labels=\(3,\) must be of the shape \(2,\)"),
        (IDS, {"labels": torch.tensor([0, 3])}, "labels has 3, but there are 0 … 2"),
        (IDS, {"attention_mask": torch.ones(2, 7)},
         r"attention_mask=\(2, 7\) must begin with questions × choices, \(2, 3\), as input_ids"),
        (IDS, {"position_ids": torch.zeros(2, 2, 7).long()}, r"position_ids=\(2, 2, 7\) must"),
        (IDS[:, :0], {}, "is empty"),
        (IDS.flatten(0, 1)[:5], {"labels": torch.tensor([0, 1])}, "labels is of 2 questions, but"),
        (IDS.flatten(0, 1), {"labels": [0, 1]}, "labels is of 0 questions.*give a tensor"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused_by_name(ids, more, says, small):
    with pytest.raises(ConfigError, match=says):
        small(ids, **more)


def test_other_heads_take_no_choices():
    model = af.build(EncoderOnly(stack(), LMHead()), seed=0)
    with pytest.raises(ConfigError, match=r"input_ids=\(2, 3, 7\)"):
        model(IDS)


def test_a_head_without_its_pooler_is_refused():
    with pytest.raises(ConfigError, match=r"EncoderOnly\.pool=None.*give pool=Pool\(\)"):
        EncoderOnly(stack(), ChoiceHead())
