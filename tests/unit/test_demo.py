"""The demo on a small phrasebook and for a few steps: all its parts meet, and nothing is lost."""

from __future__ import annotations

import functools
import json

import pytest

from allformer.data import phrasebook as book
from allformer.demo import RECIPE, demo
from allformer.errors import CheckpointError, TrainingError
from allformer.train.lock import only_one

QUICK = ("train.steps=3", "train.save_every=2", "model.dim=16", "tokenizer.vocab=500")
# A model of three steps finds no end.
pytestmark = pytest.mark.filterwarnings("ignore:no end was reached")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(book, "phrasebook", functools.partial(book.phrasebook, pairs=2_400))


def test_the_demo_scores_unseen_pairs_and_writes_its_report(tmp_path):
    said: list[str] = []
    result = demo(tmp_path / "demo", overrides=QUICK, say=said.append)
    page = result.report.read_text(encoding="utf-8")
    assert result.scores["sentences"] == 100
    assert json.loads((tmp_path / "demo" / "scores.json").read_text())["bleu_signature"]
    assert all(sample.source in page for sample in result.samples[:3])
    assert "英文 → 中文" in page
    assert any("100 sentences" in line for line in said)


def test_a_second_demo_takes_the_place_of_the_first_and_of_nothing_else(tmp_path):
    demo(tmp_path, overrides=QUICK, say=str)
    demo(tmp_path, overrides=QUICK, say=str)
    (tmp_path / "recipe.yaml").write_text("name: mine\n")
    with pytest.raises(CheckpointError, match="something else than a demo"):
        demo(tmp_path, overrides=QUICK, say=str)
    assert (tmp_path / "model.safetensors").exists()


def test_a_demo_that_is_being_trained_is_left_alone(tmp_path):
    demo(tmp_path, overrides=QUICK, say=str)
    with only_one(tmp_path), pytest.raises(TrainingError, match="being trained by another process"):
        demo(tmp_path, overrides=QUICK, say=str)
    assert (tmp_path / "model.safetensors").exists()


def test_the_demo_recipe_is_not_changed_by_overrides(tmp_path):
    before = json.dumps(RECIPE)
    demo(tmp_path / "demo", overrides=QUICK, say=str)
    assert json.dumps(RECIPE) == before
