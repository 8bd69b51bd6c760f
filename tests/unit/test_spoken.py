"""Scoring transcripts: error rates against jiwer, normalisers against transformers'."""

from __future__ import annotations

import json
import random

import pytest
from transformers.models.whisper.english_normalizer import (
    BasicTextNormalizer,
    EnglishNumberNormalizer,
    EnglishTextNormalizer,
)

from allformer.errors import CheckpointError
from allformer.metrics.word_error import character_error, edits, word_error
from allformer.text.spoken import basic, english, load_spelling
from allformer.text.spoken_numbers import WORDS

SPELLING = {"colour": "color", "analyse": "analyze"}
PIECES = [
    *sorted(WORDS), "a", "half", "and a half", "the", "21", "3.5", "$20", "1,000", "5th", "1960s",
    "twenty-one", "0", ".5", "$2.50", "$0.07", "¢7", "50%", "%", "£", "1.2.3", "-5", "cat", "it's",
    "can't", "Mr.", "he's been", "don't", "colour", "uh", "(x y)", "[noise]", "<b>", "ß", "é",
    "O", "o'clock", " 'tis", "...", "世界", "naïve",
]  # fmt: skip


def sentences(count: int) -> list[str]:
    draw = random.Random(0)
    joins = (" ", " ", ", ", "-")
    return [
        draw.choice(joins).join(draw.choice(PIECES) for _ in range(draw.randint(1, 7)))
        for _ in range(count)
    ]


def check_normalisers(count: int = 1_000) -> None:
    theirs, ours = EnglishTextNormalizer(SPELLING), english(SPELLING)
    plain = BasicTextNormalizer()
    for text in sentences(count):
        assert ours(text) == theirs(text), text
        assert basic(text) == plain(text), text


def test_normalisers_say_what_transformers_says(thorough):
    check_normalisers(50_000 if thorough else 3_000)


def test_number_words_are_the_references():
    assert EnglishNumberNormalizer().words == WORDS


@pytest.mark.parametrize(
    ("said", "tidy"),
    [
        ("Mr. Brown's got twenty-one colours!", "mister brown has got 21 colours"),
        ("two thousand three hundred and five dollars and two cents", "$2305.02"),
        ("nineteen eighty four", "1984"),
        ("one oh one", "101"),
        ("Um, two and a half per cent.", "2.5%"),
    ],
)
def test_english_is_made_alike(said, tidy):
    assert english()(said).strip() == tidy


def test_error_rates_are_jiwers():
    jiwer = pytest.importorskip("jiwer", reason="jiwer is not installed")
    draw = random.Random(1)
    words = ["a", "b", "cat", "hat", "the", "是"]
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(80)]
    wanted, given = lines[:40], lines[40:]
    given[3] = ""
    assert word_error(wanted, given) == pytest.approx(jiwer.wer(wanted, given))
    assert character_error(wanted, given) == pytest.approx(jiwer.cer(wanted, given))


def check_edits() -> None:
    assert [edits("kitten", "sitting"), edits("", "abc"), edits("abc", "")] == [3, 3, 3]
    assert word_error(["one two"], ["one two"]) == 0
    assert word_error([""], [""]) == 0
    assert word_error([""], ["noise"]) == float("inf")
    assert word_error(["a b", "c d e f"], ["a", "c d e f"]) == pytest.approx(1 / 6)


def test_edits_are_levenshteins_and_edges_are_defined():
    check_edits()


def test_spellings_are_the_checkpoints(tmp_path):
    assert load_spelling(tmp_path) == {}
    (tmp_path / "normalizer.json").write_text(json.dumps(SPELLING))
    assert english(load_spelling(tmp_path))("A colour") == "a color"
    (tmp_path / "normalizer.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="no list of spellings"):
        load_spelling(tmp_path)
