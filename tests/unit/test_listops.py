"""ListOps: the grammar, what trees are worth, lengths and labels, and that a seed says all."""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path

import numpy as np
import pytest

from allformer.core.model import build
from allformer.data.listops import WORDS, Shape, Trees, draw, listops, write_listops
from allformer.errors import ConfigError
from allformer.train.recipe import read_recipe

ROOT = Path(__file__).parents[2]


def worth(text: str) -> tuple[int, int]:
    """By a stack of open lists: the value, and the most lists that were open. Raises where the text
    is not one tree of 2 to 10 arguments a list."""
    apply = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    open_lists: list[tuple[str, list[int]]] = [("root", [])]
    deepest = 0
    for word in text.split(" "):
        if word in apply:
            open_lists.append((word, []))
            deepest = max(deepest, len(open_lists) - 1)
        elif word == "]":
            operator, values = open_lists.pop()
            assert 2 <= len(values) <= 10
            open_lists[-1][1].append(apply[operator](values))
        else:
            assert word in "0123456789"
            open_lists[-1][1].append(int(word))
    ((_, (value,)),) = open_lists
    return value, deepest


@pytest.fixture(scope="module")
def trees() -> Trees:
    return draw(0, seed=0)


def test_every_tree_is_worth_what_an_independent_evaluator_says(trees):
    found = [worth(text) for text in trees.texts()]
    assert [value for value, _ in found] == trees.labels.tolist()
    assert max(depth for _, depth in found) == 9  # the tenth level has digits alone


def test_lengths_are_those_of_the_long_range_arena(trees):
    assert trees.lengths.min() > 500
    assert trees.lengths.max() < 2000
    assert trees.lengths.tolist() == [len(text.split()) for text in trees.texts()]
    assert 950 < trees.lengths.mean() < 1150


def test_the_grammar_draws_evenly(trees):
    counts = np.bincount(trees.tokens, minlength=len(WORDS)) / len(trees.tokens)
    digits, operators = counts[:10], counts[10:14]
    assert counts[14] == pytest.approx(operators.sum())  # each list ends once
    assert digits == pytest.approx(np.full(10, digits.mean()), rel=0.02)
    assert operators == pytest.approx(np.full(4, operators.mean()), rel=0.02)


def test_labels_are_as_uneven_as_stated(trees):
    shares = np.bincount(trees.labels, minlength=10) / len(trees)
    assert shares[[0, 9]] == pytest.approx([0.17, 0.16], abs=0.03)
    assert 0.05 < shares[1:9].min() < shares[1:9].max() < 0.12


def test_a_seed_says_all():
    small = Shape(depth=4, args=4, low=10, high=60)
    one, same, other = (listops(3000, seed, small) for seed in (1, 1, 2))
    assert len(one) == 3000
    assert one.texts() == same.texts()
    assert one.texts() != other.texts()
    assert listops(10, 1, small).texts() == one.texts()[:10]
    assert one.text(7) == one.texts()[7]


def test_files_have_the_arenas_columns_and_a_smaller_train_keeps_the_rest(tmp_path):
    small = Shape(depth=4, args=4, low=10, high=60)
    for name, train in (("a", 50), ("b", 20)):
        write_listops(tmp_path / name, train, 10, 5, seed=3, shape=small)
    lines = {p.name: p.read_text().splitlines() for p in (tmp_path / "a").iterdir()}
    assert {name: len(rows) - 1 for name, rows in lines.items()} == {
        "train.tsv": 50,
        "val.tsv": 10,
        "test.tsv": 5,
    }
    assert {rows[0] for rows in lines.values()} == {"Source\tTarget"}
    text, label = lines["val.tsv"][1].split("\t")
    assert worth(text)[0] == int(label)
    for name in ("val.tsv", "test.tsv"):
        assert (tmp_path / "b" / name).read_text().splitlines() == lines[name]
    assert not {*lines["train.tsv"][1:]} & {*lines["val.tsv"][1:], *lines["test.tsv"][1:]}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"depth": 1}, "depth=1"),
        ({"args": 1}, "args=1"),
        ({"low": 500, "high": 501}, "high=501"),
    ],
)
def test_a_shape_that_no_tree_has_is_refused(shape, said):
    with pytest.raises(ConfigError, match=said):
        Shape(**shape)


def test_lengths_that_never_come_are_refused():
    with pytest.raises(ConfigError, match="none has more than 5 and fewer than 7"):
        listops(1, 0, Shape(depth=2, args=3, low=5, high=7))


def test_every_mechanism_of_the_benchmark_builds_with_the_same_sizes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("listops")
    recipe = read_recipe(bench.RECIPE)
    assert set(bench.SAID) == set(bench.MECHANISMS)
    for name in bench.MECHANISMS:
        model = build(bench.tree(name, recipe), device="meta")
        (stack,) = model.config.stacks.values()
        assert (stack.dim, len(stack.blocks)) == (recipe.model.dim, recipe.model.layers)
