"""A run without text: no tokeniser is made, kept or asked for, and all else is as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from allformer.checkpoint.run import load_run
from allformer.checkpoint.weights import read_tensors
from allformer.errors import CheckpointError, ConfigError, TrainingError
from allformer.images import load_processor
from allformer.tasks import classify_image
from allformer.train.dry_run import dry_run
from allformer.train.loop import train
from allformer.train.objectives.image_classification import ImageClassification
from allformer.train.recipe import Recipe, make_recipe, read_recipe
from allformer.train.watch.replay import replay
from tests.drawn import halves, write_idx


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_idx(tmp_path_factory.mktemp("data") / "halves")


def recipe(data: Path, **train: Any) -> Recipe:
    usual = {"steps": 12, "batch_rows": 24, "accumulate": 2, "validate_every": 6, "save_every": 6}
    return make_recipe(
        {
            "objective": "image-classification",
            "data": {"path": str(data), "hold_out": 30},
            "model": {"patch": 4, "dim": 16, "heads": 2, "layers": 1, "feed": 32, "dropout": 0.1},
            "optim": {"name": "adamw", "rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 2},
            "train": {**usual, **train},
            "log": {"every": 4, "tensorboard": False},
        }
    )


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "straight"
    train(recipe(data), out, device="cpu")
    return out


def test_a_run_of_images_has_no_tokeniser_and_opens_without_one(run: Path) -> None:
    opened = load_run(run)
    assert opened.tokenizer is None
    with pytest.raises(CheckpointError, match="reads no text"):
        opened.text  # noqa: B018
    assert not list(run.glob("*token*"))
    assert "tokenizer" not in (run / "recipe.yaml").read_text()
    assert read_recipe(run / "recipe.yaml").data.image == (8, 8)


def test_a_run_of_images_is_a_checkpoint_that_the_tasks_open(run: Path) -> None:
    assert load_processor(run).settings.mode == "L"
    pixels, _ = halves(3, seed=9)
    found = classify_image(str(run), list(pixels))
    assert [label.label in "0123" for label in found] == [True] * 3


def test_a_run_of_images_goes_on_exactly_where_it_stopped(
    data: Path, run: Path, tmp_path: Path
) -> None:
    train(recipe(data, steps=6), tmp_path / "run", device="cpu")
    train(None, tmp_path / "run", device="cpu", resume=True, overrides=["train.steps=12"])
    once, again = read_tensors(run), read_tensors(tmp_path / "run")
    assert all(torch.equal(x, again[name]) for name, x in once.items())


def test_what_is_drawn_for_a_batch_is_drawn_again_in_a_replay(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plain = ImageClassification.ready

    def spoilt(self: Any, batch: Any) -> Any:
        """The third batch that is made is none, and each like it."""
        seen.append(batch.key)
        bad = batch.key is not None and seen.index(batch.key) == 2
        made = plain(self, batch)
        return made._replace(pixels=made.pixels * float("inf")) if bad else made

    monkeypatch.setattr(ImageClassification, "ready", spoilt)
    with pytest.raises(TrainingError, match="not finite at step 3"):
        train(recipe(data, accumulate=1), tmp_path / "run", device="cpu")
    (kept,) = (tmp_path / "run" / "replay").glob("*.pt")
    assert len(set(seen)) == 3  # the third one twice: it was looked at again
    bad = replay(kept, "cpu").look.first_bad
    assert bad is not None
    assert "patches" in bad.name


def test_a_plan_is_made_without_text(data: Path) -> None:
    plan = dry_run(recipe(data), device="cpu")
    assert plan.examples == 170
    assert plan.tokens_per_step <= 48


def test_a_tokeniser_for_images_is_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer is for text"):
        make_recipe({"objective": "image-classification", "tokenizer": {"kind": "bpe"}})
