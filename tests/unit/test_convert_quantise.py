"""`allformer convert --quantise`: rounded by one text, scored on another."""

from __future__ import annotations

import json
import math

import pytest

import allformer as af
from allformer.cli.entry import run as command
from allformer.cli.main import app
from allformer.core.quantised import Quantised, is_quantised
from allformer.errors import DataError
from allformer.evaluate.quantised import calibration
from allformer.tasks.pipeline import open_pipeline
from tests.tiny import LINES, checkpoint  # noqa: F401  (a fixture)

TEXT = " ".join(LINES[:4] * 12)


@pytest.fixture
def convert(capsys):
    """The command: `convert(source, target, "--quantise", "int4")` → what it says."""

    def call(*arguments, status=0):
        capsys.readouterr()
        found = command(app, ["convert", *map(str, arguments), "--json", "--no-run"])
        said = capsys.readouterr()
        assert found == status, said.err
        return said.err if status else json.loads(said.out)

    return call


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(TEXT[40:400])
    return tmp_path / "a.txt", tmp_path / "b.txt"


def test_a_text_to_round_by_and_one_to_score_on(checkpoint, convert, texts, tmp_path):  # noqa: F811
    source, (train, test) = checkpoint("llama"), texts
    made = {}
    for name, more in (("nearest", ()), ("calibrated", ("--calibrate", train))):
        out = tmp_path / name
        made[name] = convert(source, out, "--quantise", "int4", "--perplexity", test, *more)
        assert made[name] == json.loads((out / "certificate.json").read_text())
        assert is_quantised(af.load(out))
        lost = made[name]["perplexity"]
        figures = [lost[side]["perplexity"] for side in ("before", "after")]
        assert math.isclose(lost["change"], figures[1] / figures[0] - 1)
        assert lost["before"]["tokens"] == lost["after"]["tokens"] > 20
        assert figures[0] != figures[1]
    assert made["calibrated"]["quantised"]["calibrated_by_tokens"] % 512 == 0
    assert made["calibrated"]["quantised"]["calibrated_by_tokens"] > 0
    packed = [af.load(tmp_path / name).decoder.layers[0].feed.up.packed for name in made]
    assert not packed[0].equal(packed[1])


def test_a_group_is_taken(checkpoint, convert, tmp_path):  # noqa: F811
    convert(checkpoint("llama"), tmp_path / "out", "--quantise", "int8", "--group", 16)
    layer = af.load(tmp_path / "out").decoder.layers[0].feed.up
    assert isinstance(layer, Quantised)
    assert (layer.bits, layer.group) == (8, 16)


def test_what_cannot_be_done_is_said_before_the_work(checkpoint, convert, texts, tmp_path):  # noqa: F811
    llama, t5, out = checkpoint("llama"), checkpoint("t5"), tmp_path / "out"
    said = convert(llama, out, "--perplexity", texts[1], status=1)
    assert "belong to --quantise" in said
    said = convert(t5, out, "--quantise", "int8", "--perplexity", texts[1], status=1)
    assert "perplexity needs a decoder" in said
    said = convert(t5, out, "--quantise", "int8", "--calibrate", texts[0], status=1)
    assert "calibrate it in Python" in said
    said = convert(llama, out, "--quantise", "int2", status=1)
    assert "try int8 or int4" in said
    assert not out.exists()


def test_a_text_that_fills_no_row_is_refused(checkpoint):  # noqa: F811
    with pytest.raises(DataError, match="give a longer one"):
        calibration(open_pipeline(checkpoint("llama")), ["too short"])


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_info_tells_the_real_bytes_of_a_quantised_directory(
    checkpoint,  # noqa: F811
    convert,
    tmp_path,
    capsys,
    kind,
):
    out = tmp_path / "few"
    convert(checkpoint("llama"), out, "--quantise", kind)
    assert command(app, ["info", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = (out / "model.safetensors").stat().st_size
    assert 0 < size - told["file_bytes"] < 20_000, "all but the header"
    held = told["file"]
    assert set(held) == {"F32", kind}
    layers = [x for x in af.load(out).modules() if isinstance(x, Quantised)]
    assert held[kind]["numbers"] == sum(x.inputs * x.outputs for x in layers)
    assert told["parameters"] == sum(each["numbers"] for each in held.values())
    assert command(app, ["info", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"in {out.name}" in said
    assert "weights, at 2 bytes a number" in said
