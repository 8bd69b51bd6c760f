"""Small published results: a declared score is passed, or missed with what to look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allformer.cli.entry import run
from allformer.cli.main import app
from allformer.core.model import build
from allformer.errors import ConfigError, DataError
from allformer.reproduce import entries, entry, find, reproduce
from allformer.reproduce.data import changed_files
from allformer.reproduce.entry import Score, read_entry
from allformer.reproduce.run import entry_recipe, small_bert
from allformer.reproduce.verdict import verdict
from allformer.train.objectives import find_objective
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.sections.vocabulary import Vocabulary

ROOT = Path(__file__).parent.parent.parent
TINY = """
about: a few letters
score: {figure: nll, expected: EXPECTED, tolerance: 0.5}
published: 3.5 (nobody)
time: 1 s
look: [the letters themselves]
data: tiny-shakespeare
recipe:
  objective: causal-lm
  data: {max_length: 16}
  tokenizer: {kind: characters, vocab: 60}
  model: {dim: 16, heads: 2, feed: 32, layers: 1}
  train: {steps: 2, batch_tokens: 64, save_every: 2, validate_every: 2, average: 1}
  log: {tensorboard: false}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a small text where the corpus is looked for."""
    monkeypatch.setenv("ALLFORMER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "input.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 40)
    return folder


def tiny(expected: float) -> entry.Entry:
    return read_entry("tiny", TINY.replace("EXPECTED", str(expected)))


def test_a_score_that_is_reached_passes_and_one_that_is_not_is_missed(home, tmp_path):
    outcome = reproduce(tiny(4.0), data=home, out=tmp_path / "run", device="cpu")
    assert outcome.passed
    assert outcome.score == outcome.figures["nll"]
    assert 2 < outcome.score < 4.5
    lines = verdict(outcome, home)
    assert lines[0].startswith(f"passed: tiny: nll {outcome.score:.4f}, declared 4 ± 0.5, in ")
    assert "seen here: not yet seen here" in lines

    again = reproduce(tiny(1.0), data=home, out=tmp_path / "run", device="cpu")
    assert again.score == outcome.score, "a run that is there is not trained anew"
    assert not again.passed
    text = "\n".join(verdict(again, home, changed=True))
    for words in (
        "missed: tiny",
        f"it is {outcome.score - 1:.4f} worse than declared",
        "--set",
        "not the public one: input.txt differs",
        "not yet seen with this library",
        "the letters themselves",
        "metrics.jsonl",
    ):
        assert words in text


def test_the_command_ends_with_the_verdicts_status(home, tmp_path, monkeypatch, capsys):
    for expected, status, word in ((4.0, 0, "passed"), (1.0, 1, "missed")):
        monkeypatch.setattr(entry, "entries", lambda e=expected: {"tiny": tiny(e)})
        given = ["reproduce", "tiny", "--data", str(home), "--out", str(tmp_path / "run")]
        assert run(app, [*given, "--device", "cpu"]) == status
        assert capsys.readouterr().out.startswith(word)
        assert run(app, [*given, "--device", "cpu", "--json"]) == status
        found = json.loads(capsys.readouterr().out)
        assert found["passed"] is (status == 0)
        assert found["expected"] == expected


def test_without_a_name_all_are_listed_with_what_was_seen(capsys):
    assert run(app, ["reproduce", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"tiny-shakespeare", "tiny-shakespeare-cpu", "multi30k-en-de"} <= set(listed)
    assert listed["tiny-shakespeare"]["expected"] == 1.4697
    assert run(app, ["reproduce"]) == 0
    assert "not yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("figure", "found", "passed", "surprising"),
    [
        ("nll", 1.9, True, False),
        ("nll", 2.2, False, False),
        ("nll", 1.5, True, True),
        ("accuracy", 1.9, True, False),
        ("accuracy", 1.5, False, False),
        ("accuracy", 2.5, True, True),
        ("bits_per_byte", 1.5, True, True),
        ("nll", float("nan"), False, False),
    ],
)
def test_worse_by_more_than_the_tolerance_is_missed(figure, found, passed, surprising):
    score = Score(figure, 2.0, 0.15)
    assert score.passed(found) is passed
    assert score.surprising(found) is surprising


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_entry_has_a_recipe_that_builds(name, tmp_path):
    asked = entries()[name]
    if asked.checkpoint:
        given = {"model": {**asked.recipe["model"], "checkpoint": str(tmp_path)}}
        assert make_recipe({**asked.recipe, **given}).objective in asked.recipe["objective"]
        return
    recipe = make_recipe({"name": name, **asked.recipe})
    vocabulary = Vocabulary(getattr(recipe.tokenizer, "vocab", 100))
    build(find_objective(recipe.objective)(recipe).config(vocabulary), device="meta")
    assert make_recipe({"name": name, **asked.recipe}) == recipe


@pytest.mark.parametrize("name", sorted(entries()))
def test_an_entry_and_the_recipe_of_its_name_do_not_drift_apart(name):
    path = ROOT / "recipes" / f"{name}.yaml"
    if not path.is_file():
        pytest.skip(f"no recipe is called {name}")
    ours, other = dict(entries()[name].recipe), read_recipe(path)
    if entries()[name].checkpoint:
        ours["model"] = {**ours["model"], "checkpoint": other.model.checkpoint}
    ours["data"] = dict(ours["data"])
    for field in ("path", "corpus", "validation"):
        if getattr(other.data, field, None):
            ours["data"][field] = getattr(other.data, field)
    assert make_recipe({"name": name, **ours}) == other


def test_labelled_data_is_read_by_its_files_and_fetched_where_none_is_given(tmp_path):
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("good\t1\nbad\t0\n")
    recipe = entry_recipe(find("sst2-scratch"), tmp_path)
    assert recipe.data.path == str(tmp_path / "train.tsv")
    assert recipe.data.validation == str(tmp_path / "dev.tsv")
    assert changed_files("sst2", tmp_path) == ["train.tsv", "dev.tsv"]
    assert changed_files("sst2", None) == []


def test_what_cannot_be_done_is_refused_by_its_name(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"'tiny-shakespear'; did you mean tiny-shakespeare"):
        find("tiny-shakespear")
    with pytest.raises(DataError, match="is no directory"):
        entry_recipe(find("sst2-scratch"), tmp_path / "none")
    with pytest.raises(ConfigError, match="duplicated-sequences draws its own data"):
        entry_recipe(find("duplicated-sequences"), tmp_path)
    assert entry_recipe(find("duplicated-sequences")).objective == "duplication"
    with pytest.raises(ConfigError, match="begins with fresh weights"):
        entry_recipe(find("sst2-scratch"), tmp_path, model="x")
    monkeypatch.setattr("allformer.reproduce.run.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="give --model DIR"):
        small_bert()
