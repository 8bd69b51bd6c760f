"""Scores: sacreBLEU's own numbers, each with the signature that says how it was measured."""

from __future__ import annotations

import sys

import pytest
import sacrebleu

from allformer.errors import AllformerError, DataError
from allformer.generate.evaluate import score_translations

OUTPUTS = ["Ein Hund rennt über das Gras .", "Zwei Männer reden miteinander.", "Das ist gut."]
REFERENCES = ["Ein Hund rennt über die Wiese.", "Zwei Männer reden miteinander. ", "das ist Gut."]
CHINESE = ["他喜欢在公园里散步。", "我们今天去北京。"], ["他喜欢在公园里跑步。", "我们今天去上海。"]


def test_scores_are_sacrebleus_with_their_signatures():
    scores = score_translations(OUTPUTS, REFERENCES, "de")
    assert scores["bleu"] == sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score
    assert 20 < scores["bleu"] < 80
    assert "case:mixed" in scores["bleu_signature"]
    assert "tok:13a" in scores["bleu_signature"]
    assert f"version:{sacrebleu.__version__}" in scores["bleu_signature"]
    assert "nc:6" in scores["chrf_signature"]
    assert scores["sentences"] == 3


def test_exact_match_counts_sentences_that_are_right_to_the_letter():
    assert score_translations(OUTPUTS, REFERENCES, "de")["exact_match"] == pytest.approx(100 / 3)
    perfect = score_translations(REFERENCES, REFERENCES, "de")
    assert perfect["exact_match"] == 100.0
    assert perfect["bleu"] == pytest.approx(100.0)
    assert perfect["chrf"] == pytest.approx(100.0)


@pytest.mark.parametrize(("language", "cut"), [("zh", "zh"), ("ja", "char"), ("de", "13a")])
def test_each_language_has_its_tokenisation(language, cut):
    outputs, references = CHINESE
    scores = score_translations(outputs, references, language)
    assert f"tok:{cut}|" in scores["bleu_signature"]
    want = sacrebleu.corpus_bleu(outputs, [references], tokenize=cut).score
    assert scores["bleu"] == want


def test_chinese_is_not_one_word_a_sentence():
    outputs, references = CHINESE
    assert score_translations(outputs, references, "zh")["bleu"] > 40
    assert score_translations(outputs, references, "de")["bleu"] < 1


def test_lowercase_is_measured_and_said():
    plain = score_translations(OUTPUTS, REFERENCES, "de")
    lower = score_translations(OUTPUTS, REFERENCES, "de", lowercase=True)
    assert lower["bleu"] > plain["bleu"] + 1
    assert lower["chrf"] > plain["chrf"]
    assert "case:lc" in lower["bleu_signature"]
    assert "case:lc" in lower["chrf_signature"]


def test_without_sacrebleu_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(AllformerError, match=r"need sacrebleu; pip install 'allformer\[eval\]'"):
        score_translations(OUTPUTS, REFERENCES, "de")


def test_nothing_to_score_and_unequal_counts_are_refused():
    with pytest.raises(DataError, match="nothing to score"):
        score_translations([], [], "de")
    with pytest.raises(DataError, match=r"3 translations .* against 2 references"):
        score_translations(OUTPUTS, REFERENCES[:2], "de")
