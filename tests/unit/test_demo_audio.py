"""The demo of models that hear and speak, on few recordings and for a few steps: its parts meet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from allformer import demo_audio as module
from allformer.cli.main import app
from allformer.data.voices import VOICES, speak
from allformer.demo_audio import Sizes, demo_audio, nearest_voice
from allformer.demo_room import Demo
from allformer.errors import CheckpointError
from allformer.explain.words import WORDS
from tests.unit.test_report import Outline

pytest.importorskip("jiwer", reason="transcripts are scored with jiwer: allformer[sound]")

FEW = Sizes(said=24, counted=24, held=4, listens=2, means=2, speaks=2, units=8, codes=16, prompts=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, list[str]]:
    said: list[str] = []
    out = tmp_path_factory.mktemp("demo") / "heard"
    return demo_audio(out, say=said.append, sizes=FEW), said


def test_the_page_lets_one_hear_each_model_in_both_languages(made):
    result, said = made
    page = result.report.read_text(encoding="utf-8")
    outline = Outline(page)
    assert outline.open == []
    ids = [value for _, name, value in outline.attributes if name == "id"]
    assert {"recogniser", "codec", "speaker"} <= {*ids}
    assert page.count("<audio") >= FEW.held + 2 * 4 + FEW.prompts
    assert all(WORDS["sounds.continued"][i] in page for i in (0, 1))
    assert '<i class="seam"' in page
    assert any("goes on counting" in line for line in said)


def test_figures_are_shares_and_runs_have_pages_of_their_own(made):
    result, _ = made
    assert {*result.scores} == {"recogniser", "codec", "speaker"}
    assert all(0 <= x <= 1 for x in result.scores["speaker"].values())
    assert result.scores["codec"]["kbit_per_second"] == pytest.approx(4 * 50 / 1000)
    for run in ("recogniser", "speech/semantic", "speech/coarse"):
        assert (result.run / run / "report.html").is_file()
    own = (result.run / "recogniser" / "report.html").read_text(encoding="utf-8")
    assert WORDS["diagram.convolutions"][0] in own
    assert "allformer transcribe" not in own  # its tokens are not Whisper's


def test_the_speech_goes_on_by_the_command_that_the_page_gives(made, tmp_path):
    result, _ = made
    prompt = next((result.run / "counting" / "wav").glob("val-00000-*.wav"))
    asked = ["generate", str(result.run / "speech"), "--audio", str(prompt)]
    asked += ["--seconds", "0.2", "--out", str(tmp_path / "more.wav")]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0, said.output
    assert (tmp_path / "more.wav").stat().st_size > prompt.stat().st_size


def test_it_takes_the_place_of_another_of_its_kind_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(CheckpointError, match="something else than this demo"):
        demo_audio(tmp_path, say=str, sizes=FEW)


def test_a_voice_is_known_by_its_pitch() -> None:
    for name in ("Ada", "Dov"):
        assert nearest_voice(torch.from_numpy(speak("one nine", VOICES[name]).wave), 8000) == name
    assert nearest_voice(torch.zeros(8000), 8000) == ""


def test_the_command_says_the_figures_and_where_the_page_is(tmp_path, monkeypatch):
    def quick(out: Path, **given: object) -> Demo:
        return Demo(out, out / "report.html", {"recogniser": {"wer": 0.1}}, 1.0)

    monkeypatch.setattr(module, "demo_audio", quick)
    said = CliRunner().invoke(app, ["demo", "--audio", "--out", str(tmp_path / "a")])
    assert said.exit_code == 0, said.output
    assert "wer 0.1" in said.output
    asked = ["demo", "--audio", "--out", str(tmp_path / "a"), "--json"]
    assert json.loads(CliRunner().invoke(app, asked).stdout)["recogniser"] == {"wer": 0.1}
    both = CliRunner().invoke(app, ["demo", "--audio", "--vision"])
    assert both.exit_code != 0
