"""Runs translate by the one pipeline: a line out for each line in, and limits that speak up."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import allformer as af
from allformer.checkpoint.older_run import closed, generation_of
from allformer.checkpoint.run import Run
from allformer.config import EncoderDecoder, Learned, LMHead, Position, Sinusoidal, Tokens
from allformer.errors import ConfigError, LengthError
from allformer.tasks import batching
from allformer.tasks.pipeline import Pipeline, open_pipeline, run_pipeline
from allformer.tasks.texts import translate
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from tests.models import BOS, EOS, KINDS, PAD, restless

LINES = [
    "two dogs run",
    "",
    "a",
    "a man is riding a bicycle",
    "   ",
    "red",
    "the old man and the sea",
    "dogs",
    "two old men",
    "",
]
SINES = Sinusoidal()
OLD = Path(__file__).parents[1] / "old_run"  # from before runs were checkpoints
RECORD = json.loads((OLD / "said.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(LINES, "char", vocab=60)


def make_run(tokenizer: Tokenizer, end: float = 4.0, position: Position = SINES) -> Pipeline:
    """A restless model over the tokeniser's pieces, as training would leave it."""
    config = KINDS["seq2seq modern"]
    assert isinstance(config, EncoderDecoder)
    pieces = Tokens(tokenizer.vocab_size, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    config = EncoderDecoder(
        replace(config.encoder, source=pieces, position=position),
        replace(config.decoder, source=pieces, position=position),
        head=LMHead(tied=False, bias=True),
    )
    model = restless(config, seed=7, end=end)
    model.provenance.generation = generation_of(config, beams=2)
    return run_pipeline(Run(Path("nowhere"), model, closed(tokenizer, 40)))


@pytest.fixture(autouse=True)
def _quiet():
    """Restless models often find no end; the test about that warning asks for it by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no end was reached")
        yield


# --- an older run ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", RECORD["said"])
def test_an_older_run_says_token_for_token_what_it_said(case):
    beams, penalty, limit = case.split()
    options = {"num_beams": int(beams), "length_penalty": float(penalty)}
    if limit != "None":
        options["max_new_tokens"] = int(limit)
    found = translate(open_pipeline(OLD, device="cpu"), RECORD["texts"], **options)
    assert found == RECORD["said"][case]


def test_an_older_run_searches_as_its_recipe_says_and_refuses_what_is_too_long():
    pipeline = open_pipeline(OLD, device="cpu")
    assert translate(pipeline, RECORD["texts"]) == RECORD["said"]["3 0.5 None"]
    assert af.load(OLD).provenance.generation["num_beams"] == 3
    with pytest.raises(LengthError, match="takes 32; split it, or cut it with truncate=True"):
        translate(pipeline, "dog " * 40)


# --- lines and batches -------------------------------------------------------------------------


def test_each_line_in_gives_a_line_out_in_order_and_empty_ones_stay_empty(tokenizer):
    out = translate(make_run(tokenizer), LINES)
    assert len(out) == len(LINES)
    assert [bool(text) for text in out] == [bool(text.strip()) for text in LINES]
    assert len(set(out)) >= 8, "the lines must be told apart"


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("end", [4.0, -1e4], ids=["ends", "endless"])
def test_a_line_among_others_is_translated_as_alone(tokenizer, beams, end):
    run = make_run(tokenizer, end)
    alone = [translate(run, line, num_beams=beams) for line in LINES]
    assert translate(run, LINES, num_beams=beams) == alone


@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_the_batch_budget_changes_nothing_but_the_batches(tokenizer, budget, monkeypatch):
    run = make_run(tokenizer)
    want = [translate(run, line) for line in LINES]
    monkeypatch.setitem(batching.BUDGET, "cpu", budget)
    assert translate(run, LINES) == want


# --- lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 2])
def test_a_translation_has_twice_the_tokens_of_its_source_and_twenty_at_most(tokenizer, beams):
    run = make_run(tokenizer, end=-1e4)
    with pytest.warns(UserWarning, match="no end was reached in 2 of 2 texts"):
        out = translate(run, ["ab", "abcdefgh"], num_beams=beams)
    # each letter is a token, and so is </s>
    assert 20 < len(out[0]) <= 2 * 3 + 20 < len(out[1]) <= 2 * 9 + 20


def test_learned_positions_bound_source_and_translation(tokenizer):
    run = make_run(tokenizer, end=-1e4, position=Learned(20))
    with pytest.warns(UserWarning, match="no end was reached"):
        assert len(translate(run, "a" * 19)) <= 20
    with pytest.raises(LengthError, match=r"has 21 tokens.* takes 20; split it"):
        translate(run, ["a", "a" * 20])


def test_text_far_longer_than_the_run_was_trained_for_is_refused_or_cut(tokenizer):
    run = make_run(tokenizer)
    with pytest.raises(LengthError, match=r"has 3001 tokens, but .* takes 40; .*--truncate"):
        translate(run, ["two dogs", "a" * 3000])
    with pytest.warns(UserWarning, match="1 text was cut to 40 tokens"):
        assert translate(run, "a" * 3000, truncate=True) == translate(run, "a" * 39)


def test_text_of_unknown_pieces_is_warned_about(tokenizer):
    run = make_run(tokenizer)
    with pytest.warns(UserWarning, match=r'2 of 3 texts are mostly unknown .*of "ΩΩΩ"'):
        translate(run, ["two dogs", "ΩΩΩ", "Ωa ΩΩ"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="no end was reached")
        translate(run, ["two dogs Ω", ""])


def test_a_translation_that_ends_does_not_warn(tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translate(make_run(tokenizer, end=40.0), "two dogs")


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 0}, "num_beams=0 must be a whole number of at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be a whole number of at least 1"),
        ({"length_penalty": float("nan")}, "length_penalty=nan must be a finite number"),
        ({"source": "en", "target": "de"}, "is told no language; leave both out"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tokenizer, options, said):
    with pytest.raises(ConfigError, match=said):
        translate(make_run(tokenizer), "two dogs", **options)
