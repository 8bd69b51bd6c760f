"""Translator: a line out for each line in, whatever its neighbours, and limits that speak up."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from allformer.checkpoint.run import Run
from allformer.config import EncoderDecoder, Learned, LMHead, Position, Sinusoidal, Tokens
from allformer.errors import LengthError
from allformer.generate import translate
from allformer.generate.translate import Translator
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


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(LINES, "char", vocab=60)


def make_run(tokenizer: Tokenizer, end: float = 4.0, position: Position = SINES) -> Run:
    """A restless model over the tokeniser's pieces."""
    config = KINDS["seq2seq modern"]
    assert isinstance(config, EncoderDecoder)
    pieces = Tokens(tokenizer.vocab_size, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    config = EncoderDecoder(
        replace(config.encoder, source=pieces, position=position),
        replace(config.decoder, source=pieces, position=position),
        head=LMHead(tied=False, bias=True),
    )
    return Run(Path("nowhere"), restless(config, seed=7, end=end), tokenizer)


@pytest.fixture(autouse=True)
def _quiet():
    """Restless models often find no end; the test about that warning asks for it by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="line .* no end after")
        yield


def test_each_line_in_gives_a_line_out_in_order_and_empty_ones_stay_empty(tokenizer):
    translator = Translator(make_run(tokenizer), beams=2)
    out = list(translator.lines(LINES))
    assert len(out) == len(LINES)
    assert [bool(text) for text in out] == [bool(text.strip()) for text in LINES]
    assert len(set(out)) >= 8, "the lines must be told apart"
    assert not any("\n" in text for text in out)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_line_among_others_is_translated_as_alone(tokenizer, beams):
    translator = Translator(make_run(tokenizer), beams=beams)
    assert list(translator.lines(LINES)) == [translator(line) for line in LINES]


@pytest.mark.parametrize("budget", [1, 30, 60, 10_000])
def test_the_batch_budget_changes_nothing_but_the_batches(tokenizer, budget, monkeypatch):
    run = make_run(tokenizer)
    want = [Translator(run, beams=2)(line) for line in LINES]
    sizes = []
    plain = translate.search

    def spy(model, ids, *args, **kwargs):
        sizes.append(tuple(ids.shape))
        return plain(model, ids, *args, **kwargs)

    monkeypatch.setattr(translate, "search", spy)
    assert list(Translator(run, beams=2, batch_tokens=budget).lines(LINES)) == want
    assert sum(rows for rows, _ in sizes) == 7
    assert all(rows == 1 or rows * width <= budget for rows, width in sizes)
    assert {1: 7, 10_000: 1}.get(budget, len(sizes)) == len(sizes)


def test_a_long_stream_is_read_in_pieces_and_stays_in_order(tokenizer, monkeypatch):
    translator = Translator(make_run(tokenizer), beams=1)
    want = list(translator.lines(LINES))
    monkeypatch.setattr(translate, "_CHUNK", 3)
    read = []

    def stream():
        for line in LINES:
            read.append(line)
            yield line + "\n"

    out = translator.lines(stream())
    assert next(out) == want[0]
    assert len(read) == 3, "no more lines are read than are needed"
    assert [want[0], *out] == want


def test_a_line_longer_than_learned_positions_is_refused_by_number(tokenizer, monkeypatch):
    monkeypatch.setattr(translate, "_CHUNK", 4)
    translator = Translator(make_run(tokenizer, position=Learned(20)), beams=1)
    fits = "a" * 19  # and </s>
    list(translator.lines([fits]))
    with pytest.raises(LengthError, match=r"line 6 has 21 tokens.* 20 positions; split the line"):
        list(translator.lines([fits, "a", "", "dogs", "two", fits + "a"]))


def test_learned_positions_bound_the_translation_too(tokenizer):
    translator = Translator(make_run(tokenizer, end=-1e4, position=Learned(20)), beams=2)
    with pytest.warns(UserWarning, match="no end after 20 tokens"):
        translator("a man")


def test_sinusoids_take_a_line_longer_than_any_before(tokenizer):
    run = make_run(tokenizer)
    assert Translator(run, beams=1, max_new_tokens=30)("two dogs run " * 60)
    with pytest.warns(UserWarning, match="no end after 628 tokens"):  # 2 · 304 + 20
        Translator(make_run(tokenizer, end=-1e4), beams=1)("ab" * 150 + "abc")


def test_a_translation_without_an_end_warns_with_the_line_and_the_way_out(tokenizer, monkeypatch):
    monkeypatch.setattr(translate, "_CHUNK", 2)
    translator = Translator(make_run(tokenizer, end=-1e4), beams=2, max_new_tokens=6)
    with pytest.warns(UserWarning, match="no end") as caught:
        out = list(translator.lines(["", "dogs", "", "", "two dogs"]))
    said = sorted(str(w.message) for w in caught)
    assert [text.split(":")[0] for text in said] == ["line 2", "line 5"]
    assert all("no end after 6 tokens" in text for text in said)
    assert all("raise max_new_tokens" in text for text in said)
    assert [bool(text) for text in out] == [False, True, False, False, True]


def test_a_translation_that_ends_does_not_warn(tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Translator(make_run(tokenizer, end=40.0), beams=2)("two dogs")
