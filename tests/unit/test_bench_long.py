"""`allformer bench long`: what is measured, whose weights, and what is advised."""

from __future__ import annotations

import gc
import json
import time
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.bench import Row, compare
from allformer.bench.advice import advice
from allformer.bench.fit import fit
from allformer.bench.long import random_ids
from allformer.bench.measure import exponent, in_turn, peak_bytes
from allformer.bench.mechanisms import MECHANISMS, Mechanism, read_mechanisms
from allformer.bench.plot import draw
from allformer.cli.main import app
from allformer.config import Learned, Window
from allformer.config.remix import remix
from allformer.errors import ConfigError
from tests.models import PAPER, decoder_only, encoder_only
from tests.tiny import checkpoint  # noqa: F401  (a fixture)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _little_garbage():
    """What other tests left is not looked through again before each measurement."""
    gc.freeze()


@pytest.fixture
def brief(monkeypatch):
    """The command, with one round of calls in place of seconds of them."""
    monkeypatch.setattr("allformer.bench.compare", partial(compare, budget=0.0))


@pytest.fixture(scope="module")
def model():
    tree = encoder_only(PAPER, position=Learned(16, offset=2))
    return af.build(tree, seed=0).eval()


def test_the_exponent_is_that_of_the_power_law():
    lengths = [1000, 2000, 4000]
    assert exponent(lengths, [3.0 * n for n in lengths]) == pytest.approx(1.0)
    assert exponent(lengths, [0.1 * n * n for n in lengths]) == pytest.approx(2.0)
    assert exponent(lengths, [5.0, 5.0, 5.0]) == pytest.approx(0.0)


def test_the_peak_has_what_is_freed_before_the_end_and_not_what_was_there():
    there = torch.zeros(1_000_000)

    def call() -> torch.Tensor:
        large = there + 1  # 4 MB
        larger = large * large  # 8 MB
        del large
        return larger[:10].clone()

    assert 8_000_000 <= peak_bytes(call, CPU) < 8_100_000
    assert peak_bytes(lambda: there[:10].clone(), CPU) < 1000


def test_calls_are_timed_in_turn_once_at_least_and_while_the_budget_lasts():
    calls: list[str] = []

    def call(name: str) -> None:
        calls.append(name)
        time.sleep(0.06)

    both = {name: partial(call, name) for name in "ab"}
    assert min(in_turn(both, CPU, budget=0.0).values()) >= 0.06
    assert calls == ["a", "b"]
    in_turn(both, CPU, budget=10.0, most=2)
    assert calls[2:] == ["a", "b", "a", "b"]


def test_weights_go_into_the_other_tree_and_positions_are_repeated(model):
    tree = Mechanism("window", 3).tree(model.config, 40)
    made, fresh = fit(model, tree)
    assert not fresh
    old, new = model.encoder.source.position.weight, made.encoder.source.position.weight
    assert new.shape[0] == 42
    assert torch.equal(new[:2], old[:2]), "the rows in front stand once"
    assert torch.equal(new[2 + 16 : 2 + 32], old[2:]), "positions begin again"
    assert (
        made.encoder.layers[0].attention.qkv.weight is model.encoder.layers[0].attention.qkv.weight
    )
    for name, weight in made.state_dict().items():
        if "position" not in name:
            assert torch.equal(weight, model.state_dict()[name]), name


def test_a_window_over_everything_is_full_attention_and_a_narrow_one_is_not(model):
    found = compare(model, 24, mechanisms="window:24,window:1", budget=0.0)
    assert found.rows["window:24"].error == pytest.approx(0.0, abs=1e-5)
    assert found.rows["window:1"].error > 1e-3
    assert [row.whole for row in found.rows.values()] == [False, True, False]
    assert [row.mechanism for row in found.rows.values()] == ["full", "window:24", "window:1"]


@pytest.mark.parametrize("shape", [encoder_only, decoder_only])
def test_every_mechanism_is_measured_or_says_why_not(shape):
    model = af.build(shape(PAPER), seed=0).eval()
    found = compare(model, 128, budget=0.0, train=True)
    assert {*found.rows} == {"full", *MECHANISMS}
    for row in found.rows.values():
        assert row.measured != bool(row.refused), row
        if row.measured:
            assert row.error is not None
            assert row.peak_bytes is not None
            assert row.peak_bytes > 0
    assert found.rows["full"].measured
    assert {*found.best} == {"fastest", "smallest", "nearest"}
    assert found.best["nearest"] != "full"
    assert found.rows["window"].measured
    json.dumps(found.as_dict())


def rows(**others: tuple[float, int, float]) -> dict[str, Row]:
    both = {"full": (1.0, 1000, 0.0), **others}
    return {name: Row(name, "", *figures) for name, figures in both.items()}


def test_the_advice_is_the_nearest_of_those_that_gain():
    found = rows(near=(0.5, 1000, 0.1), fast=(0.1, 100, 0.6), slow=(2.0, 1000, 0.01))
    assert "take near: 2.0 × as fast" in advice(found, trained=True)
    assert "take fast" in advice(found, trained=False)
    assert "stay with full attention" in advice(rows(slow=(1.0, 990, 0.0)), trained=True)
    small = rows(small=(1.1, 400, 0.2))
    assert "take small" in advice(small, trained=True)


def test_what_is_full_attention_at_this_length_is_no_advice():
    """Whatever the clock says of it."""
    found = rows(near=(0.5, 1000, 0.3))
    found["wide"] = Row("wide", "", 0.1, 100, 0.0, whole=True)
    assert "take near" in advice(found, trained=True)
    del found["near"]
    assert "at this length all that was measured is the same" in advice(found, trained=True)


def test_the_advice_passes_over_weights_that_are_fresh():
    found = rows(near=(0.5, 1000, 0.3))
    found["other"] = Row("other", "", 0.5, 1000, 0.1, fresh=4)
    assert "take near" in advice(found, trained=True)


def test_mechanisms_are_read_with_their_size_and_refused_by_name():
    assert [str(each) for each in read_mechanisms("window:7, full")] == ["window:7", "full"]
    causal = read_mechanisms("window:7")[0].tree(decoder_only(PAPER), 100)
    assert causal.decoder.blocks[0].attention.mixer == Window(7, 0)
    with pytest.raises(ConfigError, match="did you mean window"):
        read_mechanisms("windo")
    with pytest.raises(ConfigError, match="whole number"):
        read_mechanisms("window:x")
    with pytest.raises(ConfigError, match="has no size"):
        read_mechanisms("linear:4")


def test_another_mixer_stands_in_every_layer_of_the_stack_that_is_named():
    tree = remix(encoder_only(PAPER), Window(3, 3))
    assert {block.attention.mixer for block in tree.encoder.blocks} == {Window(3, 3)}
    seq2seq = remix(af.preset("original-tiny"), Window(3, 3), "encoder")
    assert {b.attention.mixer for b in seq2seq.encoder.blocks} == {Window(3, 3)}
    assert seq2seq.decoder == af.preset("original-tiny").decoder


def test_random_tokens_are_no_padding():
    model = af.build(af.preset("original-tiny"), device="meta")
    assert not (random_ids(model, 5000) == model.config.encoder.tokens.pad_id).any()


def test_the_command_prints_a_table_json_and_a_picture(tmp_path, brief):
    picture = tmp_path / "long.png"
    call = ["bench", "long", "original-tiny", "--length", "64", "--mechanisms", "window:8"]
    call += ["--device", "cpu"]
    told = CliRunner().invoke(app, [*call, "--plot", str(picture)])
    assert told.exit_code == 0, told.output
    assert "window:8" in told.output
    assert "at 64 tokens on cpu: " in told.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert [row["mechanism"] for row in found["rows"]] == ["full", "window:8"]
    assert found["advice"]


def test_a_checkpoint_reads_a_text_again_and_again_and_its_nearness_is_judged(
    tmp_path,
    brief,
    checkpoint,  # noqa: F811
):
    text = tmp_path / "text.txt"
    text.write_text("The capital of France is Paris.")
    call = ["bench", "long", str(checkpoint("bert-mlm")), "--length", "200", "--text", str(text)]
    call += ["--mechanisms", "window:4,reformer", "--device", "cpu", "--json"]
    found = json.loads(CliRunner().invoke(app, call).stdout)
    assert found["trained"]
    near, hashed = found["rows"][1:]
    assert near["fresh"] == 0
    assert near["error"] > 0
    assert hashed["fresh"] > 0, "queries and keys are one there"


def test_random_tokens_need_no_tokeniser(tmp_path, brief, model):
    path, text = str(tmp_path / "model"), tmp_path / "text.txt"
    af.save(model, path, family="allformer")
    text.write_text("words")

    def said(*words):
        return CliRunner().invoke(app, ["bench", "long", path, *words])

    found = said("--length", "16", "--mechanisms", "window:4")
    assert found.exit_code == 0, found.exception
    assert "no tokeniser" in str(said("--text", str(text)).exception)
    assert "--plot x.txt is a picture: give x.png" in str(said("--plot", "x.txt").exception)


def test_a_text_needs_a_tokeniser(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("words")
    said = CliRunner().invoke(app, ["bench", "long", "original-tiny", "--text", str(text)])
    assert "give a checkpoint" in str(said.exception)


def test_the_picture_of_many_mechanisms_is_written(tmp_path, model):
    draw(compare(model, 32, mechanisms="window:2,window:4", budget=0.0), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
