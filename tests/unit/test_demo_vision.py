"""The demo of models that see, on few shapes and for a few steps: all its parts meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allformer import demo_vision as module
from allformer.cli.main import app
from allformer.demo_room import Demo
from allformer.demo_vision import STAGES, demo_vision
from allformer.errors import CheckpointError
from allformer.explain.words import WORDS
from allformer.tasks import classify_image
from tests.unit.test_report import Outline

FEW = tuple(replace(stage, data={**stage.data, "train": 24, "val": 8}) for stage in STAGES)
QUICK = ("train.steps=2", "train.validate_every=2", "train.batch_rows=8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, list[str]]:
    said: list[str] = []
    out = tmp_path_factory.mktemp("demo") / "seen"
    return demo_vision(out, overrides=QUICK, say=said.append, stages=FEW), said


def test_the_page_has_a_section_for_each_stage_in_both_languages(made):
    result, said = made
    page = result.report.read_text(encoding="utf-8")
    outline = Outline(page)
    assert outline.open == []
    ids = [value for _, name, value in outline.attributes if name == "id"]
    for stage in FEW:
        assert stage.name in ids
        assert f'href="#{stage.name}"' in page
        assert all(text in page for text in (*stage.title, *stage.lead, *stage.nav))
        assert any(stage.title[0] in line for line in said)
    assert WORDS["looks.intro.cls"][1] in page
    assert WORDS["places.title"][0] in page
    assert "<img alt=" in page


def test_each_stage_leaves_a_run_with_figures_and_a_page_of_its_own(made):
    result, _ = made
    for stage in FEW:
        run = result.run / stage.name
        assert (run / "report.html").is_file()
        assert (run / "predictions.json").is_file()
        assert result.scores[stage.name]
    shapes = json.loads((result.run / "classifier-shapes.json").read_text(encoding="utf-8"))
    assert shapes["train"] == 24


def test_its_classifier_is_a_checkpoint(made):
    from allformer.data.shapes import KINDS, draw_one

    result, _ = made
    found = classify_image(str(result.run / "classifier"), draw_one(0, 1).pixels)
    assert found.label in KINDS


def test_a_second_demo_takes_the_place_of_the_first_and_of_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "x"
    first = demo_vision(out, overrides=QUICK, say=str, stages=FEW[:1])
    (out / "left-over").write_text("")
    demo_vision(out, overrides=QUICK, say=str, stages=FEW[:1])
    assert first.report.is_file()
    assert not (out / "left-over").exists()
    (out / module.MARK).unlink()
    with pytest.raises(CheckpointError, match="something else than this demo"):
        demo_vision(out, overrides=QUICK, say=str, stages=FEW[:1])


def test_the_command_says_the_figures_and_where_the_page_is(tmp_path, monkeypatch):
    def quick(out: Path, **given: object) -> Demo:
        return Demo(out, out / "report.html", {"classifier": {"accuracy": 0.9}}, 1.0)

    monkeypatch.setattr(module, "demo_vision", quick)
    said = CliRunner().invoke(app, ["demo", "--vision", "--out", str(tmp_path / "v")])
    assert said.exit_code == 0, said.output
    assert "accuracy 0.9" in said.output
    assert str(tmp_path / "v" / "report.html") in said.output.replace("\n", "")
    asked = ["demo", "--vision", "--out", str(tmp_path / "v"), "--json"]
    assert json.loads(CliRunner().invoke(app, asked).stdout)["classifier"] == {"accuracy": 0.9}
