"""Watching a run: figures, boards, statistics, jumps, replays and profiles."""

from __future__ import annotations

import json
import math
import sys
import types
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

import allformer as af
from allformer.checkpoint.transfer import own_state
from allformer.errors import CheckpointError, ConfigError, TrainingError
from allformer.train.loop import train
from allformer.train.metrics import read_lines, read_metrics
from allformer.train.progress import Clock, Lap
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.step import Stepper
from allformer.train.watch import machine
from allformer.train.watch.operations import Operations
from allformer.train.watch.replay import replay
from allformer.train.watch.spikes import FIRST, Spikes
from allformer.train.watch.statistics import group_of
from tests.unit.test_cli import allformer  # noqa: F401  (a fixture)
from tests.unit.test_train_loop import (
    data,  # noqa: F401  (a fixture)
    same_weights,
    stop_at,
    timeless,
    toy_recipe,
)

# ruff: noqa: F811


def watched(data: Path, *overrides: str, **settings: object) -> Recipe:
    return make_recipe(toy_recipe(data, **settings).plain(), ["log.tensorboard=false", *overrides])


# --- figures -----------------------------------------------------------------------------------


def test_rows_and_lines_tell_speed_share_memory_wait_and_time_left(data, tmp_path, capfd):
    train(watched(data, steps=8), tmp_path / "run", device="cpu")
    row = next(row for row in read_metrics(tmp_path / "run") if row["step"] == 4)
    assert row["tokens_per_second"] > 0
    assert 0 < row["peak_share"] < 1
    assert 0.05 < row["memory_gib"] < 100
    assert 0 <= row["data_wait"] <= 1
    assert row["seconds_left"] > 0
    line = next(x for x in capfd.readouterr().err.splitlines() if x.startswith("step 8/8"))
    for word in ("nll ", "rate ", "tok/s ", "peak ", "mem ", "wait ", "left 0:00"):
        assert f"  {word}" in line


def test_a_lap_tells_the_share_that_was_spent_waiting(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("allformer.train.progress.time.monotonic", lambda: now[0])
    clock = Clock()
    with clock.waiting():
        now[0] += 1
    now[0] += 3
    clock.count(200)
    with clock.paused():
        now[0] += 6
    assert clock.lap(5) == Lap(speed=50.0, seconds=4.0, wait=0.25, left=50.0)
    now[0] += 2
    clock.count(200)
    assert clock.lap(1) == Lap(speed=100.0, seconds=2.0, wait=0.0, left=6.0)


def test_operations_are_three_times_those_of_the_count():
    from allformer.core.layout import Grid

    for name in ("gpt2", "original-base"):
        config = af.preset(name)
        batch = (*(Grid(4, 512) for _ in config.stacks), 0)
        wanted = 3 * 4 * 512 * af.count(config, 512).flops_per_token
        assert Operations(config).of(batch, 4 * 512) == pytest.approx(wanted, rel=1e-3)
        assert Operations(config, "layers").of(batch, 2048) == pytest.approx(4 / 3 * wanted, 1e-3)
    few = Operations(af.preset("gpt2")).of((Grid(4, 512),), 10)  # a head that scores ten tokens
    assert few < 0.71 * Operations(af.preset("gpt2")).of((Grid(4, 512),), 2048)


def test_packed_rows_count_by_their_own_lengths():
    from allformer.core.layout import Grid, pack

    operations = Operations(af.preset("gpt2"))
    keep = torch.ones(2, 700, dtype=torch.bool)
    assert operations.of((pack(keep), 3), 9) == operations.of((Grid(2, 700), 3), 9)
    keep[1, 100:] = False
    alone = sum(operations.of((Grid(1, n),), 0) for n in (700, 100))
    assert operations.of((pack(keep),), 0) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("NVIDIA H200", 989.4), ("NVIDIA A100-SXM4-40GB", 312.0), ("NVIDIA L40S", 362.0),
        ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A10", 125.0), ("Tesla T4", 65.0),
    ],
)  # fmt: skip
def test_a_chip_is_known_by_its_name(name, wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    peak = machine.find_peak(torch.device("cuda"), torch.bfloat16)
    assert peak.flops == wanted * 1e12
    assert peak.source == f"{name}, data sheet"


def test_the_peak_is_that_of_the_products_that_layers_have(monkeypatch):
    """Another library's would be passed: on AMD's processors steps had 150 % of it."""
    seen = []
    monkeypatch.setattr(machine, "matmul", lambda *given: seen.append(given))
    machine.measured_peak(torch.device("cpu"))
    assert len(seen) > 1


def test_a_chip_that_is_not_listed_is_measured(monkeypatch):
    peak = machine.find_peak(torch.device("cpu"))
    assert 1e8 < peak.flops < 1e14
    assert "measured" in str(peak)
    seen = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA T400")
    monkeypatch.setattr(machine, "measured_peak", lambda *asked: seen.append(asked))
    machine.find_peak(torch.device("cuda"))
    assert len(seen) == 1


# --- boards ------------------------------------------------------------------------------------


class Stub(types.ModuleType):
    """What we use of wandb."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = types.SimpleNamespace(name="wandb")  # type: ignore[assignment]
        self.asked: list[dict] = []
        self.rows: list[dict] = []
        self.finished = 0

    def init(self, **asked):
        self.asked.append(asked)
        return self

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        self.finished += 1


def test_a_project_of_wandb_gets_every_row_and_a_resume_goes_on_in_the_same_run(
    data, tmp_path, monkeypatch
):
    stub, run = Stub(), tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", stub)
    train(watched(data, "log.wandb=mine", "log.statistics=4", steps=8), run, device="cpu")
    assert stub.asked[0]["project"] == "mine"
    assert stub.asked[0]["config"]["train"]["steps"] == 8
    logged = [row for row in stub.rows if "nll" in row]
    assert [(r["step"], r["nll"]) for r in logged] == [
        (r["step"], r["nll"]) for r in read_metrics(run) if "nll" in r
    ]
    assert any("weights.rms/decoder.0.feed" in row for row in stub.rows)
    train(None, run, device="cpu", resume=True, overrides=["train.steps=12"])
    assert [asked["id"] for asked in stub.asked] == [stub.asked[0]["id"]] * 2
    assert stub.asked[1]["resume"] == "allow"
    assert stub.finished == 2


def test_a_missing_wandb_is_refused_before_any_work(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"log\.wandb='mine' needs .* pip install allformer\[wa"):
        train(watched(data, "log.wandb=mine"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_tensorboard_is_written_when_it_is_asked_for(data, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    recipe = watched(data, "log.tensorboard=true", "log.statistics=4", steps=4)
    train(recipe, run, device="cpu")
    events = reader.EventAccumulator(str(run / "tensorboard")).Reload()
    found = {row["step"]: row["nll"] for row in read_metrics(run) if "nll" in row}
    assert {e.step: e.value for e in events.Scalars("nll")} == pytest.approx(found)
    assert "activations.std/decoder.0.feed_norm" in events.Tags()["scalars"]
    train(watched(data, steps=1), tmp_path / "without", device="cpu")
    assert not (tmp_path / "without" / "tensorboard").exists()


# --- statistics --------------------------------------------------------------------------------


def test_statistics_change_no_number_and_add_up(data, tmp_path):
    recipe = watched(data, "log.every=1", "optim.clip=0.5", steps=8)
    train(recipe, tmp_path / "plain", device="cpu")
    run = tmp_path / "run"
    train(make_recipe(recipe.plain(), ["log.statistics=2"]), run, device="cpu")
    same_weights(run / "model.safetensors", tmp_path / "plain" / "model.safetensors")
    assert timeless(run) == timeless(tmp_path / "plain")
    norms = {row["step"]: row["gradient_norm"] for row in read_metrics(run) if "nll" in row}
    assert max(norms.values()) > 0.5, "nothing was clipped"
    rows = read_lines(run / "statistics.jsonl")
    assert [row["step"] for row in rows] == [2, 4, 6, 8]
    for row in rows:
        parts = row["weights"].values()
        total = math.sqrt(sum(part["gradient"] ** 2 for part in parts))
        assert total == pytest.approx(norms[row["step"]], rel=1e-4)
        assert all(0 < part["update"] < 1 and part["weight"] > 0 for part in parts)
        assert {"encoder.0.attention", "decoder.0.cross", "decoder.0.feed"} <= set(row["weights"])
        assert row["activations"]["decoder.0.feed_norm"]["std"] == pytest.approx(1, abs=0.1)
        assert not any("scores" in name for name in row["activations"])


def test_a_resumed_run_has_every_row_of_statistics_once(data, tmp_path, monkeypatch):
    run, recipe = tmp_path / "run", watched(data, "log.statistics=3", steps=12)
    with monkeypatch.context() as patch:
        stop_at(patch, 8, lambda stepper: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train(recipe, run, device="cpu")
    assert [row["step"] for row in read_lines(run / "statistics.jsonl")] == [3, 6]
    train(None, run, device="cpu", resume=True)
    assert [row["step"] for row in read_lines(run / "statistics.jsonl")] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("decoder.layers.11.attention.qkv.weight", "decoder.11.attention"),
        ("encoder.layers.0.feed_norm.weight", "encoder.0.feed"),
        ("encoder.source.embedding.weight", "encoder.source"),
        ("head.bias", "head.bias"),
    ],
)
def test_a_parameter_belongs_to_a_part_of_a_layer(name, group):
    assert group_of(name) == group


# --- jumps, and numbers that are none ------------------------------------------------------------


def test_a_loss_far_above_its_running_median_is_a_jump_and_a_slow_fall_is_none():
    spikes = Spikes(6.0)
    falling = [5 * 0.99**n + 0.01 * math.sin(7 * n) for n in range(60)]
    assert not any(spikes.jump(loss) for loss in falling)
    assert spikes.jump(9.0) > 6
    assert spikes.jump(falling[-1]) is None
    assert spikes.jump(9.0) > 6, "one that jumped does not hide the next"
    assert not any(Spikes(0.0).jump(x) for x in [1.0] * FIRST + [1e9])
    assert not any(Spikes(3.0).jump(x) for x in [1e9] + [1.0] * 5 + [1e9])


def test_a_jump_is_told_and_kept_and_the_training_goes_on(data, tmp_path, monkeypatch, capfd):
    plain, number = Stepper.__call__, count(1)

    def call(self, batches, rate):
        result = plain(self, batches, rate)
        return result if next(number) != 30 else replace(result, loss=result.loss * 30)

    monkeypatch.setattr(Stepper, "__call__", call)
    recipe = watched(data, "log.spike=12", steps=34, save_every=50, average=1, validate_every=99)
    train(recipe, tmp_path / "run", device="cpu")
    said = capfd.readouterr().err
    assert said.count("the loss jumps to") == 1
    assert f"allformer replay {tmp_path / 'run' / 'replay' / 'step-00000030.pt'}" in said
    again = replay(tmp_path / "run" / "replay" / "step-00000030.pt", "cpu")
    assert (again.step, again.weights_after) == (30, 30)
    assert again.look.first_bad is None
    assert "jumps by" in again.why


def planted_weight(stepper: Stepper) -> None:
    with torch.no_grad():
        stepper.model.decoder.layers[0].feed.up.weight[3, 5] = float("nan")


def test_a_planted_nan_is_kept_and_the_replay_names_the_same_value(
    data, tmp_path, monkeypatch, allformer
):
    with monkeypatch.context() as patch:
        stop_at(patch, 6, planted_weight)
        with pytest.raises(TrainingError) as stopped:
            train(watched(data), tmp_path / "run", device="cpu")
    kept = tmp_path / "run" / "replay" / "step-00000006.pt"
    said = str(stopped.value)
    assert f"allformer replay {kept}" in said
    assert "first value that is not finite: decoder.0.feed.up " in said
    found = replay(kept, "cpu")
    assert found.look.first_bad.name == "decoder.0.feed.up"
    assert [x.name for x in found.look.weights if x.bad] == ["decoder.layers.0.feed.up.weight"]
    shown = allformer("replay", kept, "--device", "cpu")
    assert shown.status == 0, shown.err
    assert "first value that is not finite: decoder.0.feed.up (" in shown.out
    assert "encoder.0.attention.q" in shown.out
    told = json.loads(allformer("replay", kept, "--json", "--device", "cpu").out)
    assert (told["first_bad"], told["step"]) == ("decoder.0.feed.up", 6)


def test_a_replay_takes_the_step_with_its_own_random_numbers(data, tmp_path, monkeypatch):
    """Dropout is drawn as it was: the loss is the same to the bit."""
    seen = []

    def remember(self, batches, rate, plain=Stepper.__call__):
        result = plain(self, batches, rate)
        seen.append(float(result.loss))
        return result

    monkeypatch.setattr(Stepper, "__call__", remember)
    monkeypatch.setattr(
        "allformer.train.watch.spikes.Spikes.jump",
        lambda self, loss: 9.0 if len(seen) == 5 else None,
    )
    before = {}

    def copy(stepper):
        before.update({n: x.detach().clone() for n, x in own_state(stepper.model).items()})

    stop_at(monkeypatch, 5, copy)
    train(watched(data, "log.spike=1", steps=6), tmp_path / "run", device="cpu")
    path = tmp_path / "run" / "replay" / "step-00000005.pt"
    stored = torch.load(path, weights_only=True)
    torch.save({**stored, "weights": before}, path)  # it was seen after the step
    torch.manual_seed(999)
    assert replay(path, "cpu").look.loss == pytest.approx(seen[4], rel=1e-6)


def test_a_batch_that_overflows_names_the_value(data, tmp_path, monkeypatch):
    def huge(stepper: Stepper) -> None:
        with torch.no_grad():
            stepper.model.encoder.layers[0].attention.qkv.weight.mul_(1e30)

    stop_at(monkeypatch, 3, huge)
    with pytest.raises(TrainingError) as stopped:
        train(watched(data), tmp_path / "run", device="cpu")
    named = str(stopped.value).split("first value that is not finite: ")[1].split(" ")[0]
    again = replay(tmp_path / "run" / "replay" / "step-00000003.pt", "cpu")
    assert again.look.first_bad.name == named


def test_what_is_no_kept_step_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"is no file; give RUN/replay/step-"):
        replay(tmp_path / "step-1.pt")
    (tmp_path / "step-1.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="is not what training keeps"):
        replay(tmp_path / "step-1.pt")


def test_a_disk_that_is_full_does_not_hide_the_diagnosis(data, tmp_path, monkeypatch, capfd):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    stop_at(monkeypatch, 2, planted_weight)
    monkeypatch.setattr("allformer.train.watch.watch.keep_step", full)
    with pytest.raises(TrainingError, match="first value that is not finite: decoder"):
        train(watched(data), tmp_path / "run", device="cpu")
    assert "step 2 cannot be kept for a replay (No space left" in capfd.readouterr().err


# --- profile -----------------------------------------------------------------------------------


def test_a_profile_leaves_a_trace_and_says_where_the_time_went(data, tmp_path, capfd):
    run = tmp_path / "run"
    train(watched(data, steps=8, accumulate=1), run, device="cpu", profile=3)
    said = capfd.readouterr().err
    assert "profile of 3 steps on the CPU" in said
    for part in ("forward", "backward and the rest", "optimiser", "wait for data"):
        assert part in said
    assert "aten::" in said
    trace = json.loads((run / "profile" / "trace.json").read_text(encoding="utf-8"))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("allformer: step") == 3
    assert names.count("allformer: forward") == 3
    plain = tmp_path / "plain"
    train(watched(data, steps=8, accumulate=1), plain, device="cpu")
    same_weights(run / "model.safetensors", plain / "model.safetensors")
