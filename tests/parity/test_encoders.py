"""BERT, RoBERTa and ALBERT against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    AutoConfig,
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

import allformer as af
from allformer.families import FAMILIES, PRESETS
from allformer.families.albert import grouping, share
from tests.parity.zoo import (
    Case,
    batch,
    compare,
    compare_round_trip,
    compare_training,
    on_disk,
    oracle,
    with_labels,
)

SIZES = {
    "vocab_size": 83, "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 34, "max_position_embeddings": 67, "type_vocab_size": 3,
}  # fmt: skip


def bert(**more):
    return functools.partial(BertConfig, **{**SIZES, **more})


def roberta(**more):
    return functools.partial(RobertaConfig, **{**SIZES, **more})


def albert(**more):
    return functools.partial(AlbertConfig, **{**SIZES, "embedding_size": 13, **more})


BARE = {"add_pooling_layer": False}
REGRESSION = {"num_labels": 1}
SEVERAL = {"num_labels": 4, "problem_type": "multi_label_classification"}
UNTIED = {"tie_word_embeddings": False}

CASES = [
    Case("Bert", BertModel, bert(), labels="none"),
    Case("Bert without pooler", BertModel, bert(), labels="none", options=BARE),
    Case("Bert, no padding id", BertModel, bert(pad_token_id=None), labels="none"),
    Case("Bert words", BertForMaskedLM, bert(hidden_act="silu", layer_norm_eps=1e-2)),
    Case("Bert words untied", BertForMaskedLM, bert(hidden_act="gelu_new", **UNTIED)),
    Case("Bert pair", BertForPreTraining, bert(pad_token_id=5), labels="pretrain"),
    Case("Bert pair untied", BertForPreTraining, bert(**UNTIED, num_labels=7), labels="pretrain"),
    Case("Bert next", BertForNextSentencePrediction, bert(), labels="class"),
    Case("Bert classes", BertForSequenceClassification,
         bert(num_labels=5, classifier_dropout=0.3), labels="class"),
    Case("Bert regression", BertForSequenceClassification, bert(**REGRESSION), labels="class"),
    Case("Bert several", BertForSequenceClassification, bert(**SEVERAL), labels="class"),
    Case("Bert tokens", BertForTokenClassification,
         bert(num_labels=6, hidden_act="relu"), labels="token"),
    Case("Bert span", BertForQuestionAnswering, bert(num_hidden_layers=1), labels="span"),
    Case("Roberta", RobertaModel, roberta(type_vocab_size=1), labels="none"),
    Case("Roberta without pooler", RobertaModel, roberta(), labels="none", options=BARE),
    Case("Roberta words", RobertaForMaskedLM, roberta(hidden_act="relu", layer_norm_eps=1e-2)),
    Case("Roberta words untied", RobertaForMaskedLM, roberta(pad_token_id=0, **UNTIED)),
    Case("Roberta classes", RobertaForSequenceClassification,
         roberta(num_labels=5, pad_token_id=4, classifier_dropout=0.0), labels="class"),
    Case("Roberta regression", RobertaForSequenceClassification,
         roberta(**REGRESSION), labels="class"),
    Case("Roberta tokens", RobertaForTokenClassification, roberta(num_labels=6), labels="token"),
    Case("Roberta span", RobertaForQuestionAnswering, roberta(), labels="span"),
    Case("Albert", AlbertModel, albert(), labels="none"),
    Case("Albert without pooler", AlbertModel, albert(embedding_size=21), labels="none",
         options=BARE),
    Case("Albert of its own layers", AlbertModel, albert(num_hidden_groups=3), labels="none"),
    Case("Albert words", AlbertForMaskedLM,
         albert(num_hidden_layers=5, num_hidden_groups=2, hidden_act="gelu")),
    Case("Albert words untied", AlbertForMaskedLM,
         albert(num_hidden_layers=2, num_hidden_groups=2, inner_group_num=2, **UNTIED)),
    Case("Albert pair", AlbertForPreTraining, albert(inner_group_num=2), labels="pretrain"),
    Case("Albert classes", AlbertForSequenceClassification,
         albert(num_labels=5, num_hidden_layers=4, num_hidden_groups=3, inner_group_num=2,
                classifier_dropout_prob=0.2), labels="class"),
    Case("Albert several", AlbertForSequenceClassification, albert(**SEVERAL), labels="class"),
    Case("Albert tokens", AlbertForTokenClassification, albert(num_labels=6), labels="token"),
    Case("Albert span", AlbertForQuestionAnswering, albert(embedding_size=40), labels="span"),
]  # fmt: skip
LABELLED = [case for case in CASES if case.labels != "none"]
by_name = {case.name: case for case in CASES}
all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@all_cases
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_forward_equals_transformers(case, side, tmp_path):
    theirs = oracle(case)
    ours = af.load(on_disk(theirs, tmp_path))
    with torch.no_grad():
        compare(case, ours, theirs, batch(case, theirs, side))


@pytest.mark.parametrize("case", LABELLED, ids=lambda case: case.name)
@pytest.mark.parametrize("side", ["right", "left"])
def test_loss_gradients_and_step_equal_transformers(case, side, tmp_path):
    theirs = oracle(case)
    ours = af.load(on_disk(theirs, tmp_path))
    inputs = labelled(case, theirs, side)
    compare_training(case, ours, theirs, inputs)


def labelled(case, theirs, side):
    """Labels that fit the problem too."""
    inputs = with_labels(case, theirs, batch(case, theirs, side))
    rows, make = len(inputs["input_ids"]), torch.Generator().manual_seed(3)
    if theirs.config.problem_type == "multi_label_classification":
        shape = (rows, theirs.config.num_labels)
        inputs["labels"] = torch.randint(0, 2, shape, generator=make).double()
    elif case.labels == "class" and theirs.config.num_labels == 1:
        inputs["labels"] = torch.randn(rows, generator=make, dtype=torch.float64)
    return inputs


@all_cases
def test_round_trip_keeps_every_tensor_and_the_config(case, tmp_path):
    path = on_disk(oracle(case), tmp_path / "theirs")
    compare_round_trip(case, path, tmp_path / "ours")
