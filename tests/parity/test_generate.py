"""generate says what transformers says, token for token, whatever options are combined."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from allformer.generate.generate import generate
from allformer.generate.options import GenerationConfig
from tests.models import BOS, PAD, VOCAB, left_padding, right_padding, tokens
from tests.parity.combos import beam_or_greedy, sampled
from tests.parity.gpt2 import gpt2_twins
from tests.parity.marian import twins

LENGTHS = [11, 4, 8, 1]
KINDS = ["decoder", "encoder-decoder"]


@pytest.fixture(autouse=True)
def _quiet():
    """transformers has much to say about unusual options."""
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def pair(kind: str, seed: int) -> Any:
    return gpt2_twins(seed) if kind == "decoder" else twins(seed, end=2.0)


def ragged(kind: str, seed: int = 0, pad: int = PAD) -> tuple[Tensor, Tensor]:
    """A batch padded where this kind is padded."""
    side = left_padding if kind == "decoder" else right_padding
    mask = side(LENGTHS, max(LENGTHS))
    ids = tokens(len(LENGTHS), max(LENGTHS), seed)
    return ids.where(mask.bool(), pad), mask


def both(kind: str, seed: int, **options: Any) -> tuple[Any, Any]:
    """What transformers gives, and what Allformer gives."""
    ours, theirs = pair(kind, seed % 4)
    ids, mask = ragged(kind, seed, options.get("pad_token_id", PAD))
    torch.manual_seed(seed)
    want = theirs.generate(ids, attention_mask=mask, **options)
    if kind != "decoder":
        options.setdefault("suppress_tokens", [PAD, BOS])  # as the twin's generation_config has
    torch.manual_seed(seed)
    return want, generate(ours, ids, mask, **options)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(30))
def test_searching_gives_the_same_tokens_with_any_combination(kind, seed):
    want, got = both(kind, seed, **beam_or_greedy(seed, encoder=kind != "decoder"))
    assert got.tolist() == want.tolist()


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(100, 115))
def test_drawing_with_the_same_seed_gives_the_same_tokens(kind, seed):
    want, got = both(kind, seed, **sampled(seed, encoder=kind != "decoder"))
    assert got.tolist() == want.tolist()


BASE: dict[str, Any] = {"max_new_tokens": 14, "eos_token_id": [3, 13, 23]}
ALONE: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 17},
    "min_new_tokens": {"min_new_tokens": 9},
    "min_length": {"min_length": 20},
    "no end": {"eos_token_id": None},
    "one end": {"eos_token_id": 23},
    "other padding": {"pad_token_id": 20},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 2.0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[i] for i in range(4, 20)] + [[21, 21], [27, 27]]},
    "sequence_bias": {"sequence_bias": {(5,): -9.0, (6,): -9.0, (7,): 3.0, (16, 27): -5.0}},
    "suppress_tokens": {"suppress_tokens": [0, 2, 5, 6, 13, 16, 17, 23, 27]},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(0, 30))},
    "forced_bos_token_id": {"forced_bos_token_id": 9},
    "forced_eos_token_id": {"forced_eos_token_id": [3, 8]},
    "exponential_decay": {"exponential_decay_length_penalty": (2, 1.6)},
    "default length": {"max_new_tokens": None},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "early": {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True},
    "never": {
        "num_beams": 3, "num_return_sequences": 2, "early_stopping": "never", "length_penalty": 2.0
    },
}  # fmt: skip


@cache
def plainly(kind: str, search: str, seed: int) -> Tensor:
    return both(kind, seed, **BASE, **SEARCHES[search])[1]


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("name", ALONE)
def test_each_option_alone_gives_the_same_tokens_and_does_something(kind, search, name):
    options = BASE | SEARCHES[search] | ALONE[name]
    if name == "max_length":
        del options["max_new_tokens"]
    changed = 0
    for seed in (1, 2, 3):
        want, got = both(kind, seed, **options)
        assert got.tolist() == want.tolist()
        changed += plainly(kind, search, seed).tolist() != got.tolist()
    # A prompt of one token is where a first one is forced: the decoder's are longer.
    assert (changed == 0) == (name == "forced_bos_token_id" and kind == "decoder")


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_three_ways_to_stop_early_stop_where_transformers_stops(kind, penalty):
    found = []
    for early in (True, False, "never"):
        options = {"num_beams": 2, "length_penalty": penalty, "early_stopping": early}
        want, got = both(
            kind, 0, max_new_tokens=20, eos_token_id=[3, 5, 6, 13, 16, 17, 23, 27], **options
        )
        assert got.tolist() == want.tolist()
        found.append(got.tolist())
    if penalty == 2.0:
        assert found[0] != found[1] != found[2], "the three are too much alike to tell"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", SEARCHES)
def test_scores_logits_and_beams_come_back_as_in_transformers(kind, search):
    options = {
        "max_new_tokens": 10, "return_dict_in_generate": True, "output_scores": True,
        "output_logits": True, "repetition_penalty": 1.2, **SEARCHES[search],
    }  # fmt: skip
    want, got = both(kind, 1, **options)
    assert got.sequences.tolist() == want.sequences.tolist()
    beams = SEARCHES[search].get("num_beams", 1)
    rows = len(LENGTHS) * beams
    assert [x.shape for x in got.scores] == [(rows, VOCAB)] * len(want.scores)
    # transformers computes them in fp32, and goes on computing rows that are done
    here = [step[0].isfinite().any() for step in got.scores]
    assert all(here[: len(here) // 2])
    for mine, other in ((got.scores, want.scores), (got.logits, want.logits)):
        for a, b in zip(mine, other, strict=True):
            alive = a.isfinite().any(1)
            assert torch.allclose(a[alive].float(), b[alive], rtol=1e-4, atol=1e-5)
    if beams > 1:
        assert torch.allclose(
            got.sequences_scores.float(), want.sequences_scores, rtol=1e-5, atol=1e-5
        )
        assert got.beam_indices.tolist() == want.beam_indices.tolist()


@pytest.mark.parametrize("vocab", [4, 7])
def test_more_beams_than_tokens_give_what_transformers_gives(vocab):
    ours, theirs = gpt2_twins(1, vocab=vocab)
    ids = torch.tensor([[1, 2, 0]])
    for early in (True, False, "never"):
        for beams in (5, 12):
            options = {"num_beams": beams, "num_return_sequences": beams, "early_stopping": early}
            want = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, **options
            )
            got = generate(ours, ids, torch.ones_like(ids), max_new_tokens=4, **options)
            assert got.tolist() == want.tolist()


def test_padding_is_found_without_a_mask():
    ours, theirs = pair("decoder", 2)
    ids, mask = ragged("decoder")
    want = theirs.generate(ids, max_new_tokens=9)
    assert generate(ours, ids, max_new_tokens=9).tolist() == want.tolist()
    assert generate(ours, ids, mask, max_new_tokens=9).tolist() == want.tolist()
    # An end token that is also the padding cannot be told from it: everything is read.
    same = {"max_new_tokens": 9, "eos_token_id": [3, PAD]}
    want = theirs.generate(ids, **same)
    assert generate(ours, ids, **same).tolist() == want.tolist()
    assert generate(ours, ids, mask, **same).tolist() != want.tolist()


def test_columns_that_are_padding_in_every_row_change_nothing():
    ours, theirs = pair("decoder", 2)
    ids, mask = ragged("decoder")
    wide, wider = (torch.nn.functional.pad(x, (3, 0)) for x in (ids, mask))
    want = theirs.generate(wide, attention_mask=wider, max_new_tokens=9, num_beams=3)
    got = generate(ours, wide, wider, max_new_tokens=9, num_beams=3)
    assert got.tolist() == want.tolist()
    plain = generate(ours, ids, mask, max_new_tokens=9, num_beams=3)
    assert got[:, 3:].tolist() == plain.tolist()


def test_a_mask_may_hide_tokens_inside_the_prompt():
    ours, theirs = pair("decoder", 1)
    ids, mask = ragged("decoder")
    mask[0, 3:6] = 0
    for beams in (1, 3):
        want = theirs.generate(ids, attention_mask=mask, max_new_tokens=9, num_beams=beams)
        got = generate(ours, ids, mask, max_new_tokens=9, num_beams=beams)
        assert got.tolist() == want.tolist()


def test_a_start_for_each_row_and_given_first_tokens():
    ours, theirs = pair("encoder-decoder", 1)
    ids, mask = ragged("encoder-decoder")
    starts, first = [2, 5, 7, 2], tokens(4, 3, seed=5)
    for options in (
        {"decoder_start_token_id": starts},
        {"decoder_input_ids": first},
        {"decoder_input_ids": torch.cat([torch.tensor(starts)[:, None], first], dim=1)},
        {"decoder_input_ids": first, "decoder_start_token_id": 6},
    ):
        for beams in (1, 3):
            more = {"max_new_tokens": 8, "num_beams": beams, **options}
            want = theirs.generate(ids, attention_mask=mask, **more)
            got = generate(ours, ids, mask, suppress_tokens=[PAD, BOS], **more)
            assert got.tolist() == want.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_without_input_the_start_token_is_read(kind):
    ours, theirs = pair(kind, 1)
    more = {"suppress_tokens": [PAD, BOS], "max_new_tokens": 8}
    assert generate(ours, **more).tolist() == theirs.generate(**more).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_generation_config_generates_as_in_transformers(kind, tmp_path):
    ours, theirs = pair(kind, 3)
    ids, mask = ragged(kind, 3)
    config = transformers.GenerationConfig(
        max_new_tokens=11, num_beams=3, num_return_sequences=2, length_penalty=0.5,
        eos_token_id=[3, 9], pad_token_id=PAD, decoder_start_token_id=BOS, repetition_penalty=1.4,
        bad_words_ids=[[6]],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    mine = GenerationConfig.load(tmp_path)
    want = theirs.generate(ids, attention_mask=mask, generation_config=config)
    plain = {} if kind == "decoder" else {"suppress_tokens": [PAD, BOS]}
    got = generate(ours, ids, mask, mine, **plain)
    assert got.tolist() == want.tolist()
    # and back
    mine.save(tmp_path / "again")
    again = transformers.GenerationConfig.from_pretrained(tmp_path / "again")
    assert again == config
