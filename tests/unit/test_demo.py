"""The demo on a small phrasebook and for a few steps: all its parts meet, and nothing is lost."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from allformer.data import phrasebook as book
from allformer.demo import RECIPE, DemoResult, demo
from allformer.errors import CheckpointError, TrainingError
from allformer.train.lock import only_one

QUICK = ("train.steps=3", "train.save_every=2", "model.dim=16", "tokenizer.vocab=500")
# A model of three steps finds no end.
pytestmark = pytest.mark.filterwarnings("ignore:no end was reached")


@pytest.fixture(autouse=True, scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book, "phrasebook", functools.partial(book.phrasebook, pairs=2_400))
        yield


class Made(NamedTuple):
    folder: Path
    result: DemoResult
    said: list[str]
    recipes: tuple[str, str]  # before and after


@pytest.fixture(scope="module")
def made(_small, tmp_path_factory) -> Made:
    folder, said, before = tmp_path_factory.mktemp("demo") / "demo", [], json.dumps(RECIPE)
    result = demo(folder, overrides=QUICK, say=said.append)
    return Made(folder, result, said, (before, json.dumps(RECIPE)))


@pytest.fixture
def first(made, tmp_path) -> Path:
    """A demo of one's own."""
    return Path(shutil.copytree(made.folder, tmp_path / "demo"))


def test_the_demo_scores_unseen_pairs_and_writes_its_report(made):
    page = made.result.report.read_text(encoding="utf-8")
    assert made.result.scores["sentences"] == 100
    assert json.loads((made.folder / "scores.json").read_text())["bleu_signature"]
    assert all(sample.source in page for sample in made.result.samples[:3])
    assert "英文 → 中文" in page
    assert any("100 sentences" in line for line in made.said)
    assert "cpu, 1 thread, " in page  # that trained it, whatever the machine has


def test_a_second_demo_takes_the_place_of_the_first_and_of_nothing_else(first):
    demo(first, overrides=QUICK, say=str)
    (first / "recipe.yaml").write_text("name: mine\n")
    with pytest.raises(CheckpointError, match="something else than a demo"):
        demo(first, overrides=QUICK, say=str)
    assert (first / "model.safetensors").exists()


def test_a_demo_that_is_being_trained_is_left_alone(first):
    with only_one(first), pytest.raises(TrainingError, match="being trained by another process"):
        demo(first, overrides=QUICK, say=str)
    assert (first / "model.safetensors").exists()


def test_the_demo_recipe_is_not_changed_by_overrides(made):
    before, after = made.recipes
    assert after == before
