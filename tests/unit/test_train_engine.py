"""What the recipe asks of the engine beside the plain loop: averages, the best, epochs, plans."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from allformer.checkpoint.weights import read_tensors
from allformer.cli.main import app
from allformer.errors import ConfigError
from allformer.train.dry_run import dry_run
from allformer.train.loop import Interrupted, Job, train
from allformer.train.metrics import read_metrics
from allformer.train.recipe import make_recipe
from tests.unit.test_train_loop import (  # noqa: F401  (fixtures)
    data,
    interrupt,
    same_weights,
    stop_at,
    toy_recipe,
)

PLAN = ["parallel.shard=2", "parallel.tensor=2"]


def test_a_moving_average_is_the_result_and_survives_an_interrupt(data, tmp_path, monkeypatch):  # noqa: F811
    recipe = toy_recipe(data, ema=0.8)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    last = read_tensors(tmp_path / "whole" / "checkpoints" / "step-00000020" / "model.safetensors")
    final = read_tensors(tmp_path / "whole" / "model.safetensors")
    assert any(not final[name].equal(last[name]) for name in final)
    with monkeypatch.context() as patch:
        stop_at(patch, 7, interrupt)
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "parts", device="cpu")
    again = train(None, tmp_path / "parts", device="cpu", resume=True)
    same_weights(tmp_path / "whole" / "model.safetensors", tmp_path / "parts" / "model.safetensors")
    assert again.validation_perplexity == whole.validation_perplexity


def test_the_best_by_a_figure_is_kept_and_is_the_result(data, tmp_path):  # noqa: F811
    recipe = toy_recipe(data, best="nll", validate_every=4, rate=3e-1, warmup=1)  # it gets worse
    train(recipe, tmp_path / "run", device="cpu")
    rows = [row for row in read_metrics(tmp_path / "run") if "validation_nll" in row]
    values = {row["step"]: row["validation_nll"] for row in rows if "averaged" not in row}
    kept = json.loads((tmp_path / "run" / "best" / "best.json").read_text())
    assert kept["value"] == min(values.values())
    assert values[kept["step"]] == kept["value"]
    assert kept["step"] < 20
    same_weights(
        tmp_path / "run" / "model.safetensors", tmp_path / "run" / "best" / "model.safetensors"
    )


def test_a_figure_that_there_is_not_is_refused_with_those_that_there_are(data, tmp_path):  # noqa: F811
    with pytest.raises(ConfigError, match=r"train\.best='f1' is no figure .* there is nll"):
        train(toy_recipe(data, best="f1", steps=2), tmp_path / "run", device="cpu")


def test_a_figure_that_there_is_not_is_refused_before_the_first_step(data, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("allformer.train.loop.Job._advance", lambda *_: pytest.fail("a step"))
    with pytest.raises(ConfigError, match=r"train\.best='f1' is no figure"):
        train(toy_recipe(data, best="f1"), tmp_path / "run", device="cpu")


def test_a_figures_name_is_known_without_a_look_at_the_held_out_examples(
    data,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    looks: list[int] = []
    look = Job._look
    monkeypatch.setattr(Job, "_look", lambda job: looks.append(job.step) or look(job))
    train(toy_recipe(data, best="accuracy", validate_every=10), tmp_path / "run", device="cpu")
    assert looks == [10, 20, 20]
    with pytest.raises(ConfigError, match=r"'acuracy' .*did you mean accuracy\? there is nll, acc"):
        train(toy_recipe(data, best="acuracy"), tmp_path / "other", device="cpu")


def test_a_warm_up_that_is_longer_than_the_run_is_told(data, tmp_path, capfd):  # noqa: F811
    train(toy_recipe(data, steps=2, warmup=5), tmp_path / "long", device="cpu")
    said = "schedule.warmup=5 is more than all 2 steps: the rate ends at 2.00e-03 and never"
    assert said in capfd.readouterr().err
    train(toy_recipe(data, steps=2, warmup=0.5), tmp_path / "share", device="cpu")
    assert "schedule.warmup" not in capfd.readouterr().err


def test_a_dry_run_of_a_plan_counts_what_all_processes_take(data):  # noqa: F811
    alone = dry_run(toy_recipe(data, epochs=2), device="cpu")
    plan = make_recipe(toy_recipe(data, epochs=2).plain(), PLAN)
    four = dry_run(plan, device="cpu")
    assert (alone.processes, four.processes) == (1, 4)
    assert four.tokens_per_step == 2 * alone.tokens_per_step
    assert four.steps_per_epoch == alone.steps_per_epoch / 2
    assert four.steps == -(-2 * four.steps_per_epoch // 1)


@pytest.mark.parametrize("flag", ["--dry-run", "--show-batch"])
def test_of_processes_that_were_launched_the_first_alone_says_the_plan(
    flag,
    data,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    (tmp_path / "toy.yaml").write_text(toy_recipe(data).to_yaml(), encoding="utf-8")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        done = CliRunner().invoke(app, ["train", str(tmp_path / "toy.yaml"), flag, "--json"])
        said.append((done.exit_code, bool(done.output)))
    first = (0, True) if flag == "--dry-run" else (1, False)  # pairs have no batch to show
    assert said == [first, (0, False)]


def test_no_board_is_told_of_a_dry_run(data, monkeypatch):  # noqa: F811
    monkeypatch.setattr("allformer.train.watch.boards.TensorBoard", lambda *_: pytest.fail("one"))
    monkeypatch.setattr("allformer.train.watch.boards.Wandb", lambda *_: pytest.fail("another"))
    recipe = make_recipe(toy_recipe(data).plain(), ["log.wandb=project", "log.tensorboard=true"])
    assert dry_run(recipe, device="cpu").steps == 20


def test_epochs_say_the_steps(data, tmp_path):  # noqa: F811
    plan = dry_run(toy_recipe(data, epochs=2.5), device="cpu")
    assert plan.steps == -(-2.5 * plan.steps_per_epoch // 1)
    assert plan.steps_per_epoch > 4
    few = toy_recipe(data, epochs=3 / plan.steps_per_epoch)
    assert train(few, tmp_path / "run", device="cpu").steps == 3


def test_a_dry_run_counts_what_training_takes_and_leaves_nothing(data, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan = dry_run(toy_recipe(data, ema=0.9), device="cpu")
    assert list(tmp_path.iterdir()) == []
    four = 4 * plan.parameters
    assert plan.memory["gradients"] == plan.memory["moving average"] == four
    assert plan.memory["optimiser"] == pytest.approx(2 * four, rel=0.01)  # and a step each
    assert plan.memory["weights"] >= four
    assert plan.memory["activations"] > 0
    assert plan.seconds == plan.steps * plan.seconds_per_step > 0
    assert plan.examples > 300


def test_a_checkpoint_goes_on_under_other_data_and_a_changed_dropout(data, tmp_path):  # noqa: F811
    train(toy_recipe(data, steps=5), tmp_path / "first", device="cpu")
    recipe = make_recipe(
        {
            "data": {"source": "en", "target": "xx", "path": str(data), "hold_out": 20},
            "model": {
                "checkpoint": str(tmp_path / "first"),
                "change": {"encoder.dropout": 0.3, "decoder.blocks.dropout": 0.0},
            },
            "train": {"steps": 1, "batch_tokens": 100, "rate": 1e-30, "average": 1},
        }
    )
    result = train(recipe, tmp_path / "second", device="cpu")
    assert result.run.model.config.encoder.dropout == 0.3
    first = read_tensors(tmp_path / "first" / "model.safetensors")
    second = read_tensors(tmp_path / "second" / "model.safetensors")
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=1e-12)


def test_a_change_of_the_bodys_shape_is_refused_by_name(data, tmp_path):  # noqa: F811
    train(toy_recipe(data, steps=1), tmp_path / "first", device="cpu")
    recipe = make_recipe(
        {
            "data": {"source": "en", "target": "xx", "path": str(data)},
            "model": {
                "checkpoint": str(tmp_path / "first"),
                "change": {"encoder.blocks.feed.width": 64},
            },
            "train": {"steps": 1, "batch_tokens": 100},
        }
    )
    with pytest.raises(ConfigError, match=r"model\.change makes encoder\.layers\.0\.feed.* \(64,"):
        train(recipe, tmp_path / "second", device="cpu")
