"""An engine over checkpoints from disk: the tokens of transformers' batch, family by family."""

from __future__ import annotations

import pytest
import torch

import allformer as af
from tests.parity import zoo
from tests.parity.test_generate_families import CASES, NAMES, prompt, talkative

NEW = 14


@pytest.mark.every(3)
@pytest.mark.parametrize("name", NAMES)
def test_an_engine_says_what_transformers_says(name, tmp_path):
    case = CASES[name]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs, across = prompt(case, theirs), theirs.config.is_encoder_decoder
    if across and theirs.generation_config.decoder_start_token_id is None:
        theirs.generation_config.decoder_start_token_id = 2
        ours.provenance.generation["decoder_start_token_id"] = 2
    cached = "t5" not in name  # transformers' cache has as many layers as T5's encoder
    with zoo.unrounded(), torch.no_grad():
        wanted = theirs.generate(**inputs, max_new_tokens=NEW, use_cache=cached)
        engine = af.Engine(ours, pages=40, page=4, chunk=10)
        rows = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        replies = [engine.add(ids[keep.bool()], max_new_tokens=NEW) for ids, keep in rows]
        engine.run()
    start = 1 if across else inputs["input_ids"].shape[1]
    for reply, row in zip(replies, wanted[:, start:].tolist(), strict=True):
        assert reply.error is None
        assert reply.new == row[: len(reply.new)]
        assert len(set(row[len(reply.new) :])) <= 1  # padding
