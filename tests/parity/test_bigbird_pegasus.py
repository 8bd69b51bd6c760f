"""BigBird-Pegasus against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from transformers import (
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
    BigBirdPegasusForQuestionAnswering,
    BigBirdPegasusForSequenceClassification,
    BigBirdPegasusModel,
)

import allformer as af
from allformer.config import BlockSparse, Full
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case

SIZES = {
    "vocab_size": 83, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 3, "decoder_attention_heads": 4, "encoder_ffn_dim": 34,
    "decoder_ffn_dim": 28, "max_position_embeddings": 67, "block_size": 4, "num_random_blocks": 2,
    "dropout": 0.0,
}  # fmt: skip


def bird(**more):
    return functools.partial(BigBirdPegasusConfig, **{**SIZES, **more})


CASES = [
    Case("pegasus", BigBirdPegasusModel, bird(), labels="none"),
    Case("pegasus in full", BigBirdPegasusModel, bird(attention_type="original_full"),
         labels="none"),
    Case("pegasus words", BigBirdPegasusForConditionalGeneration, bird(use_bias=True)),
    Case("pegasus quiet", BigBirdPegasusForConditionalGeneration,
         bird(scale_embedding=False, activation_function="relu")),
    Case("pegasus classes", BigBirdPegasusForSequenceClassification, bird(num_labels=5),
         labels="class"),
    Case("pegasus span", BigBirdPegasusForQuestionAnswering, bird(), labels="span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("pegasus"))


@pytest.mark.every(5)
@each
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_the_same_numbers(case, side, written):
    theirs = zoo.oracle(case)
    with torch.no_grad():
        zoo.compare(case, af.load(written[case.name]), theirs, zoo.batch(case, theirs, side))


@pytest.mark.parametrize("name", ["pegasus words", "pegasus quiet", "pegasus span"])
def test_the_same_training_with_the_blocks_of_each_layer(name, written):
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, zoo.batch(case, theirs, "right"))
    theirs.train()
    try:
        zoo.compare_training(case, af.load(written[name]).train(), theirs, inputs)
    finally:
        theirs.eval()


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


def test_it_writes_what_transformers_writes(written):
    """A long source: blocks in the encoder, a cache in the decoder."""
    theirs, ours = zoo.oracle(BY_NAME["pegasus words"]), af.load(written["pegasus words"])
    ids = torch.randint(3, 83, (2, 50), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 12, "num_beams": 2, "do_sample": False}
    with torch.no_grad():
        mine, hers = ours.generate(ids, **options), theirs.generate(ids, **options)
    assert mine.tolist() == hers.tolist()


def test_the_encoder_drops_nothing_out_inside_its_feed_forward_layers():
    raw = {**bird(activation_dropout=0.3)().to_dict(), "model_type": "bigbird_pegasus"}
    model, known = read_config(raw)
    assert {block.feed.dropout for block in model.encoder.blocks} == {0.0}
    assert {block.feed.dropout for block in model.decoder.blocks} == {0.3}
    assert [block.attention.mixer for block in model.encoder.blocks] == [
        BlockSparse(4, 2, seed, 67) for seed in (0, 1)
    ]
    assert {block.attention.mixer for block in model.decoder.blocks} == {Full()}
    assert write_config(model, known)[0]["activation_dropout"] == 0.3


def test_an_unknown_kind_of_attention_is_refused():
    raw = {**bird()().to_dict(), "model_type": "bigbird_pegasus", "attention_type": "dense"}
    with pytest.raises(CheckpointError, match="attention_type='dense', which is not known"):
        read_config(raw)


def test_the_preset_is_the_published_size():
    assert af.count(af.preset("bigbird-pegasus-large")).parameters == 576_891_904
