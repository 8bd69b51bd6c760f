"""Figures against scipy and scikit-learn, and by hand where their reference is a script."""

from __future__ import annotations

import math

import numpy as np
import pytest

from allformer.errors import DataError
from allformer.metrics import (
    accuracy,
    bits_per_byte,
    class_f1,
    entities,
    entity_f1,
    exact_and_f1,
    exact_and_f1_chinese,
    matthews,
    pearson,
    perplexity,
    spearman,
)

RANDOM = np.random.default_rng(0)
CLASSES = [
    ([0, 1, 1, 1], [0, 1, 1, 0]),
    ([0, 0, 0], [1, 1, 1]),
    ([2, 2, 2], [2, 2, 2]),
    ([0, 1, 2, 2, 5], [0, 2, 2, 1, 0]),
    (RANDOM.integers(0, 7, 200), RANDOM.integers(0, 7, 200)),
    (["a", "b", "b"], ["b", "b", "a"]),
]
LABELS = (RANDOM.integers(0, 2, (50, 4)), RANDOM.integers(0, 2, (50, 4)))


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize(("wanted", "given"), CLASSES)
def test_figures_of_classes_are_scikit_learns(wanted, given):
    sklearn = pytest.importorskip("sklearn.metrics")
    assert accuracy(wanted, given) == pytest.approx(sklearn.accuracy_score(wanted, given))
    assert matthews(wanted, given) == pytest.approx(sklearn.matthews_corrcoef(wanted, given))
    found = class_f1(wanted, given)
    for average in ("micro", "macro"):
        theirs = sklearn.f1_score(wanted, given, average=average, zero_division=0)
        assert getattr(found, average) == pytest.approx(theirs)
    each = sklearn.f1_score(wanted, given, average=None, zero_division=0)
    assert list(found.by_class.values()) == pytest.approx(each.tolist())


def test_figures_of_several_labels_are_scikit_learns():
    sklearn = pytest.importorskip("sklearn.metrics")
    assert accuracy(*LABELS) == pytest.approx(sklearn.accuracy_score(*LABELS))
    for average in ("micro", "macro"):
        theirs = sklearn.f1_score(*LABELS, average=average)
        assert getattr(class_f1(*LABELS), average) == pytest.approx(theirs)
    nothing = np.zeros((3, 2), int)
    assert class_f1(nothing, nothing) == (0.0, 0.0, {0: 0.0, 1: 0.0})


def test_figures_of_classes_by_hand():
    assert accuracy([0, 1, 2], [0, 1, 1]) == pytest.approx(2 / 3)
    assert accuracy([[1, 0], [1, 1]], [[1, 0], [0, 1]]) == 0.5
    assert class_f1([0, 1, 1], [0, 1, 0]).by_class == pytest.approx({0: 2 / 3, 1: 2 / 3})
    assert matthews([0, 1, 1, 1], [0, 1, 1, 0]) == pytest.approx(1 / math.sqrt(3))
    assert matthews([0, 1], [1, 0]) == pytest.approx(-1)
    assert matthews([0, 1], [1, 1]) == 0.0


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1, 2, 3], [1, 2, 4]),
        ([1, 2, 2, 3, 3, 3], [4, 4, 1, 0, 2, 2]),  # ties on both sides
        (RANDOM.normal(size=100), RANDOM.integers(0, 4, 100)),
        ([1e200, 2e200, 4e200], [1e-200, -1e-200, 3e-200]),
    ],
)
def test_correlations_are_scipys(x, y):
    stats = pytest.importorskip("scipy.stats")
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_correlations_by_hand():
    assert spearman([1, 2, 3], [1, 20, 300]) == 1.0
    assert spearman([1, 2, 2], [1, 2, 3]) == pytest.approx(math.sqrt(0.75))  # ranks 1 2.5 2.5
    assert math.isnan(pearson([0.1] * 3, [1, 2, 4]))  # whose mean is not 0.1 but for rounding
    assert math.isnan(spearman([1, 2], [3, 3]))


def test_likelihood_is_two_and_two_bits():
    assert perplexity(1000 * math.log(2), 1000) == pytest.approx(2)
    assert bits_per_byte(1000 * math.log(2), 500) == pytest.approx(2)
    assert perplexity(1e9, 1) == math.inf


# --- entities: what seqeval's get_entities and f1_score give, worked out by hand ------------------


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("O O", []),
        ("B-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),
        ("O I-PER I-PER O", [("PER", 1, 2)]),  # I- without B-
        ("I-PER", [("PER", 0, 0)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),  # another type begins another
        ("I-PER I-LOC B-LOC", [("PER", 0, 0), ("LOC", 1, 1), ("LOC", 2, 2)]),
        ("B-PER O I-PER", [("PER", 0, 0), ("PER", 2, 2)]),
        ("B-PER I-PER E-PER S-LOC I-LOC", [("PER", 0, 2), ("LOC", 3, 3), ("LOC", 4, 4)]),
        ("E-PER E-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B I O B", [("_", 0, 1), ("_", 3, 3)]),
        ("B-a-b I-a-b", [("a-b", 0, 1)]),
    ],
)
def test_entities_are_seqevals(tags, found):
    assert entities(tags.split()) == found


def test_entity_f1_by_hand():
    wanted = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    given = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    found = entity_f1(wanted, given)  # seqeval's own example: 0.50
    assert found.micro == (0.5, 0.5, 0.5, 2)
    assert found.by_kind == {"MISC": (0.0, 0.0, 0.0, 1), "PER": (1.0, 1.0, 1.0, 1)}
    assert found.macro.f1 == 0.5
    # 1 of 2 given is right, of 3 wanted: P 1/2, R 1/3, F1 2/5; a sentence's end ends an entity
    found = entity_f1([["B-A"], ["I-A", "O", "B-B"]], [["B-A"], ["O", "O", "B-A"]])
    assert found.micro == pytest.approx((1 / 2, 1 / 3, 2 / 5, 3))
    assert found.macro[:3] == pytest.approx((1 / 4, 1 / 4, 1 / 4))  # A: 1/2 each; B: 0
    assert entity_f1([["O"]], [["O"]]).micro == (0.0, 0.0, 0.0, 0)
    assert entity_f1([["B-A"]], [["I-A"]]).micro.f1 == 1.0


# --- answers: what the official scripts give, worked out by hand ----------------------------------


@pytest.mark.parametrize(
    ("wanted", "given", "exact", "f1"),
    [
        (["The Eiffel Tower!"], "  eiffel   tower", 1, 1),
        (["a cat"], "an  A cat.", 1, 1),
        (["theatre"], "atre", 0, 0),  # an article is a whole word
        (["a-b"], "ab", 1, 1),  # punctuation goes before articles do
        (["black cat"], "the big black dog", 0, 2 / 5),  # P 1/3, R 1/2
        (["x x y"], "x y y", 0, 2 / 3),  # as a bag: x once, y once
        (["in 1990", "1990"], "1990", 1, 1),  # the best of all
        (["1 2 3 4", "1 5"], "1 2", 0, 2 / 3),
        ([], "", 1, 1),  # nothing to answer
        ([], "something", 0, 0),
        (["something"], "", 0, 0),
        (["the"], "", 1, 1),
        (["the", "cat"], "cat", 1, 1),
        (["the", "cat"], "", 0, 0),  # a reference of which nothing is left does not count
        (["猫"], "猫", 1, 1),
    ],
)
def test_answers_are_squads(wanted, given, exact, f1):
    assert exact_and_f1(wanted, given) == pytest.approx((exact, f1))


@pytest.mark.parametrize(
    ("wanted", "given", "exact", "f1"),
    [
        (["北京市"], "北京", 0, 4 / 5),  # run 2, P 2/2, R 2/3
        (["《红楼梦》"], "红楼梦。", 1, 1),
        (["上海和北京"], "北京和上海", 0, 2 / 5),  # the longest run is two, though all are there
        (["1990年", "九零年"], "1990年", 1, 1),
        (["在1990 年"], "1990年", 0, 4 / 5),  # 在 · 1990 · 年
        (["iPhone手机"], "IPHONE", 0, 1 / 2),  # P 1/1, R 1/3
        (["甲"], "乙", 0, 0),
        (["甲"], "", 0, 0),
        ([], "", 1, 1),
    ],
)
def test_chinese_answers_are_cmrcs(wanted, given, exact, f1):
    assert exact_and_f1_chinese(wanted, given) == pytest.approx((exact, f1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy([1], [1, 2]), r"accuracy: wanted has shape \(1,\) and given \(2,\)"),
        (lambda: class_f1([], []), "F1 of nothing is not defined; give at least one"),
        (lambda: entities(["O", "PER"]), "tag 1 is 'PER'; it must be O, or B-"),
        (lambda: entities(["O-PER"]), "tag 0 is 'O-PER'; it must be O, or B-"),
        (lambda: entity_f1([["O"]], [["O", "O"]]), "wanted and given differ in sentences or in"),
        (lambda: perplexity(1.0, 0), "perplexity of 0 tokens is not defined; give a text"),
        (lambda: bits_per_byte(1.0, 0), "bits per byte of 0 bytes is not defined"),
    ],
)
def test_what_has_no_figure_is_refused_in_words(call, message):
    with pytest.raises(DataError, match=message):
        call()
