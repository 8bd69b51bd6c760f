"""What stands where a recipe should be: each is told in one line, with the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from allformer.config import config_from_json
from allformer.errors import CheckpointError, ConfigError
from allformer.run_report import report_run
from allformer.train.loop import train
from allformer.train.recipe import read_recipe


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "sst2-bert.yaml").write_text("objective: classification\n")
    (tmp_path / "mine.yaml").write_text("train: {stepps: 3}\n")
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "open.yaml").write_text("train:\n  steps: [1, 2\n")
    (tmp_path / "data.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("{}")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("mine.yml", "recipe mine.yml is not there; did you mean mine.yaml?"),
        ("sst2-bert", "recipe sst2-bert is not there; did you mean recipes/sst2-bert.yaml?"),
        ("sst2-bret.yaml", "did you mean recipes/sst2-bert.yaml?"),
        ("zzz", "recipe zzz is not there; give the path of a .yaml file"),
        ("run", "recipe run is a directory; give run/recipe.yaml"),
        ("empty", "recipe empty is a directory; give a .yaml file"),
        ("mine.yaml", "mine.yaml: train.stepps is not known; did you mean steps? there is"),
        ("list.yaml", "list.yaml is ['a', 'b']; it must be a section"),
        ("open.yaml", "recipe open.yaml is not YAML, line 3: expected ',' or ']'"),
        ("data.jsonl", "recipe data.jsonl is not YAML, line 2: "),
        ("data.jsonl", "give a recipe, a .yaml file: data is named in it, as data.path, or by"),
        ("picture.png", "recipe picture.png is no text in UTF-8; give a recipe, a .yaml file"),
    ],
)
def test_a_recipe_that_is_none_is_told_with_the_way_out(path: str, told: str, here: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_recipe(path)


def test_what_is_no_run_is_not_gone_on_with(here: Path) -> None:
    for path, told in (("nowhere", "there is no such directory"), ("empty", "it has no recipe")):
        with pytest.raises(ConfigError, match=f"^--resume {path}: {told}.* that `allformer train`"):
            train(None, path, resume=True)


def test_a_class_of_another_version_is_told_without_all_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"did you mean EncoderOnly\?.*newer version") as told:
        config_from_json('{"is": "EncoderOnly2"}')
    assert len(str(told.value)) < 250


def test_a_checkpoint_from_elsewhere_has_no_report(here: Path) -> None:
    import allformer as af

    tree = af.preset("original-tiny")
    af.save(af.build(tree, seed=0), here / "other")
    with pytest.raises(CheckpointError, match=r"other is no run directory: it has no tokenizer"):
        report_run(here / "other")
