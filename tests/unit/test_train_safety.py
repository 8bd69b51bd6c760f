"""What a run survives: kills, damage, other data, a second process, a full disk; what it says."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml

from allformer.config import Window
from allformer.core import dropout
from allformer.data.parallel import Corpus
from allformer.errors import CheckpointError, ConfigError, TrainingError
from allformer.train import state
from allformer.train.best import Best
from allformer.train.corpora import open_data
from allformer.train.lock import only_one
from allformer.train.loop import Interrupted, train
from allformer.train.metrics import Metrics, read_lines, read_metrics
from allformer.train.objectives import find_objective
from allformer.train.outputs import check_directory, check_file
from allformer.train.recipe import PairData, make_recipe, read_recipe
from allformer.train.state import checkpoints
from allformer.train.threads import pick_threads, threads
from tests.unit.test_train_loop import (  # noqa: F401  (fixtures)
    crash,
    data,
    interrupt,
    same_weights,
    steps_of,
    stop_at,
    straight,
    timeless,
    toy_pairs,
    toy_recipe,
)

OLD = Path(__file__).parents[1] / "old_run"


def say(line: str) -> None:
    """To nobody."""


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:  # noqa: F811
    run = tmp_path_factory.mktemp("finished") / "run"
    train(toy_recipe(data, steps=10), run, device="cpu")
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A finished run of ten steps with checkpoints at 5 and 10, of one's own."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# --- kill -9 -----------------------------------------------------------------------------------

KILLED = textwrap.dedent("""
    import os, signal, sys, torch, torch._dynamo, yaml
    torch.set_num_threads(1)
    sys.modules["torch.utils.tensorboard"] = None  # takes longer to load than the run takes
    from allformer.train import loop, metrics, state
    from allformer.train.recipe import read_recipe

    run, recipe = sys.argv[1], read_recipe(sys.argv[2])
    metrics.draw_loss = lambda rows, path: None

    def die(*args, **more):
        os.kill(os.getpid(), signal.SIGKILL)

    def deadly(owner, name, call):
        # before or in the middle of the call of that number, counted from the start of the process
        plain, left = getattr(owner, name), [call]
        def deadly(*args, **more):
            left[0] -= 1
            return die() if not left[0] else plain(*args, **more)
        setattr(owner, name, deadly)

    # one process for each death: fork before anything is trained
    deaths = [(metrics.Metrics, "add", 1), (state, "save_weights", 2), (metrics.os, "replace", 1),
              (loop, "save_state", 1), (metrics.Metrics, "sync", 2), (state, "sha256", 3),
              (loop.Job, "_finish", 1), None]
    for death in deaths:
        child = os.fork()
        if not child:
            if death:
                deadly(*death)
            loop.train(recipe, run, device="cpu", resume=bool(state.checkpoints(loop.Path(run))))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(death, os.WIFSIGNALED(status), flush=True)
        if not death:
            sys.exit(status != 0)
""")


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_is_the_run_that_was_not(
    straight,  # noqa: F811
    data,  # noqa: F811
    tmp_path,
):
    recipe, killed = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(toy_recipe(data).to_yaml(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, killed, recipe],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True") >= 6, done.stdout
    same_weights(killed / "model.safetensors", straight / "model.safetensors")
    assert steps_of(killed, "nll") == steps_of(straight, "nll") == [4, 8, 12, 16, 20]
    assert steps_of(killed, "validation_nll") == [10, 20]


def test_a_kill_in_the_last_save_leaves_no_checkpoint_too_many_in_the_mean(
    straight,  # noqa: F811
    data,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    run = tmp_path / "run"
    stop_at(monkeypatch, 17, interrupt)  # a checkpoint between two others
    with pytest.raises(Interrupted):
        train(toy_recipe(data), run, device="cpu")
    monkeypatch.setattr(state, "drop_old", crash)
    with pytest.raises(TypeError):
        train(None, run, device="cpu", resume=True)
    monkeypatch.undo()
    assert [path.name[-2:] for path in checkpoints(run)] == ["10", "15", "17", "20"]
    train(None, run, device="cpu", resume=True)
    same_weights(run / "model.safetensors", straight / "model.safetensors")
    assert [c.name for c in checkpoints(run)] == [c.name for c in checkpoints(straight)]


def test_a_kill_while_an_old_checkpoint_goes_leaves_no_half_of_it(data, tmp_path, monkeypatch):  # noqa: F811
    run = tmp_path / "run"
    plain, gone = shutil.rmtree, []

    def half(path, **more):
        if Path(path).is_relative_to(run / "checkpoints") and Path(path).is_dir():
            next(Path(path).iterdir()).unlink()
            gone.append(path)
            raise MemoryError
        plain(path, **more)

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(MemoryError):
        train(toy_recipe(data, average=1), run, device="cpu")
    assert len(gone) == 1
    assert [state.damage(path) for path in checkpoints(run)] == [""]
    monkeypatch.undo()
    train(None, run, device="cpu", resume=True)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000020"]


AT_RANDOM = textwrap.dedent("""
    import os, random, signal, sys, time, torch, torch._dynamo, yaml
    torch.set_num_threads(1)
    from allformer.train import loop, metrics, state
    from allformer.train.recipe import read_recipe

    straight, killed, recipe, kills = *sys.argv[1:3], read_recipe(sys.argv[3]), int(sys.argv[4])
    metrics.draw_loss = lambda rows, path: None
    draw = random.Random(int(sys.argv[5]))

    def child(run):
        number = os.fork()
        if not number:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            loop.train(recipe, run, device="cpu", resume=bool(state.checkpoints(loop.Path(run))))
            os._exit(0)
        return number

    begin = time.monotonic()
    loop.train(recipe, straight, device="cpu")
    whole = time.monotonic() - begin
    runs = 1
    while kills:
        number = child(f"{killed}-{runs}")
        time.sleep(draw.uniform(0.0, 0.7) * whole)
        os.kill(number, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(number, 0)[1]):
            kills -= 1
        else:
            runs += 1  # it was done: kill another
    sys.exit(os.waitpid(child(f"{killed}-{runs}"), 0)[1] != 0)
""")


def survives_kills(recipe, folder: Path, kills: int, seed: int = 0) -> None:
    """Killed at moments that nobody chose, a run ends as the one that was left alone."""
    file, alone, killed = folder / "recipe.yaml", folder / "alone", folder / "killed"
    file.write_text(recipe.to_yaml(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", AT_RANDOM, alone, killed, file, str(kills), str(seed)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for run in folder.glob("killed-*"):
        same_weights(run / "model.safetensors", alone / "model.safetensors")
        assert timeless(run) == timeless(alone)
        one, other = (read_lines(each / "statistics.jsonl") for each in (run, alone))
        assert one == other
        assert [c.name for c in checkpoints(run)] == [c.name for c in checkpoints(alone)]
        for mine, theirs in zip(checkpoints(run), checkpoints(alone), strict=True):
            same_weights(mine / "model.safetensors", theirs / "model.safetensors")


@pytest.mark.slow  # `make test` kills it at chosen moments, above
@pytest.mark.parametrize("kind", ["average", "ema and best"])
def test_a_run_that_is_killed_at_any_moment_is_the_run_that_was_not(kind, data, tmp_path):  # noqa: F811
    """Micro-batches that are accumulated, dropout, a moving average, the best weights."""
    more = [] if kind == "average" else ["train.ema=0.9", "train.best=nll"]
    asked = ["log.tensorboard=false", "log.statistics=6", "log.every=3", "train.save_every=4"]
    recipe = make_recipe(toy_recipe(data, steps=40).plain(), [*asked, *more])
    survives_kills(recipe, tmp_path, kills=25)


@pytest.mark.slow
def test_a_causal_model_that_is_killed_at_any_moment_is_the_one_that_was_not(tmp_path):
    words = ["one", "two", "three", "four", "five"]
    texts = [" ".join(words[(i + j) % 5] for j in range(3 + i % 7)) for i in range(60)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    recipe = make_recipe(
        {
            "objective": "causal-lm",
            "data": {"path": str(tmp_path / "texts.txt"), "max_length": 16, "hold_out": 6},
            "tokenizer": {"kind": "characters", "vocab": 60},
            "model": {"dim": 24, "heads": 2, "feed": 48, "layers": 2, "dropout": 0.1},
            "train": {"steps": 40, "batch_tokens": 64, "accumulate": 2, "save_every": 4,
                      "validate_every": 10, "ema": 0.9, "best": "nll"},
            "log": {"every": 3, "tensorboard": False, "statistics": 6},
        }
    )  # fmt: skip
    survives_kills(recipe, tmp_path, kills=25)


def test_reopening_the_log_never_leaves_it_shorter_than_it_was(tmp_path, monkeypatch):
    with_rows = [{"step": step, "nll": 1.0} for step in (1, 2, 3, 4)]
    text = "".join(json.dumps(row) + "\n" for row in with_rows)
    (tmp_path / "metrics.jsonl").write_text(text)

    def die(*names):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("allformer.train.metrics.os.replace", die)
        with pytest.raises(KeyboardInterrupt):
            Metrics(tmp_path, 2)
    assert read_metrics(tmp_path) == with_rows
    metrics = Metrics(tmp_path, 2)
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(text.splitlines(True)[:2])
    metrics.add(step=3, nll=0.5)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    metrics.close()


@pytest.mark.parametrize("line", ["[1]", "7", '{"nll": 3}', '{"step": "x"}', '{"step": 1', ""])
def test_an_odd_row_of_the_log_is_named(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl, line 2 is no object .*mend"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "nl')
    assert read_metrics(tmp_path) == [{"step": 1}]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_a_closed_terminal_saves_like_a_termination(data, tmp_path, monkeypatch):  # noqa: F811
    stop_at(monkeypatch, 7, lambda stepper: signal.raise_signal(signal.SIGHUP))
    with pytest.raises(Interrupted, match="stopped at step 7 of 20, all is saved"):
        train(toy_recipe(data), tmp_path / "run", device="cpu")
    assert checkpoints(tmp_path / "run")[-1].name == "step-00000007"


# --- damage ------------------------------------------------------------------------------------


def flip(path: Path, at: int = -40) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_a_flipped_bit_in_the_newest_checkpoint_is_found_and_the_one_before_counts(
    name, straight, data, tmp_path, monkeypatch, capfd  # noqa: F811
):  # fmt: skip
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 12, lambda stepper: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train(toy_recipe(data), run, device="cpu")
    flip(checkpoints(run)[-1] / name)
    train(None, run, device="cpu", resume=True)
    said = capfd.readouterr().err
    assert f"step-00000012 is damaged ({name} has other bytes than were written)" in said
    assert (run / "checkpoints" / "step-00000012.damaged" / name).is_file()
    same_weights(run / "model.safetensors", straight / "model.safetensors")


def test_when_all_checkpoints_are_damaged_nothing_is_lost_and_it_says_so(run):
    for checkpoint in checkpoints(run):
        (checkpoint / "state.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged and set aside"):
        train(None, run, device="cpu", resume=True)
    assert len(list((run / "checkpoints").glob("*.damaged"))) == 2
    (run / "model.safetensors").unlink()  # not ended, as most that a disk damages
    before = read_metrics(run)
    with pytest.raises(CheckpointError, match="already holds a run"):
        train(read_recipe(run / "recipe.yaml"), run, device="cpu")
    assert read_metrics(run) == before


def test_a_model_that_does_not_fit_is_no_damage(run):
    config = run / "config.json"
    config.write_text(config.read_text().replace('"dim": 32', '"dim": 16'))
    with pytest.raises(CheckpointError, match=r"step-00000010/model\.safetensors does not fit"):
        train(None, run, device="cpu", resume=True)
    assert [path.name for path in checkpoints(run)] == ["step-00000005", "step-00000010"]


def test_a_checkpoint_from_before_there_were_checksums_counts(tmp_path, capfd, monkeypatch):
    # Dropout drew its numbers one by one then.
    monkeypatch.setattr(dropout, "_kept", lambda x, p: F.dropout(torch.ones_like(x), p))
    run = tmp_path / "run"
    shutil.copytree(OLD, run)
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("pairs.tsv", str(run / "pairs.tsv")))
    record = json.loads((OLD / "said.json").read_text(encoding="utf-8"))
    result = train(None, run, device="cpu", resume=True, overrides=["train.steps=100"])
    assert "damaged" not in capfd.readouterr().err
    # the numbers of the version that wrote it
    rows = [row for row in result.rows if row["step"] == 100]
    assert rows[0]["nll"] == pytest.approx(record["nll"], rel=1e-5)
    assert rows[1]["validation_nll"] == pytest.approx(record["resumed"], rel=1e-5)
    assert read_recipe(recipe).train.steps == 100
    assert {"data.json", "generation_config.json"} <= {path.name for path in run.iterdir()}


@pytest.mark.parametrize("what", ["weights", "state"])
def test_a_full_disk_leaves_what_was_kept(what, straight, data, tmp_path, monkeypatch):  # noqa: F811
    run, plain, left = tmp_path / "run", state._write, [3]

    def full(part, step, stepper, extra):
        left[0] -= 1
        if left[0]:
            return plain(part, step, stepper, extra)
        (part / "model.safetensors").write_bytes(b"half")
        if what == "weights":
            raise OSError(28, "No space left on device")
        raise RuntimeError("[enforce fail at inline_container.cc] . PytorchStreamWriter failed")

    monkeypatch.setattr(state, "_write", full)
    with pytest.raises(TrainingError, match=r"step 15 cannot be saved .* go on from step 10") as no:
        train(toy_recipe(data), run, device="cpu")
    assert "what was kept is as it was: make room" in str(no.value)
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        "step-00000005", "step-00000010",
    ]  # fmt: skip
    monkeypatch.setattr(state, "_write", plain)
    train(None, run, device="cpu", resume=True)
    same_weights(run / "model.safetensors", straight / "model.safetensors")


def test_a_tokeniser_that_cannot_be_written_is_one_sentence(data, tmp_path):  # noqa: F811
    (tmp_path / "run" / "tokenizer.json").mkdir(parents=True)
    with pytest.raises(TrainingError, match=r"tokenizer\.json: Is a directory; what was kept is"):
        train(toy_recipe(data), tmp_path / "run", device="cpu")


def test_an_error_of_the_system_is_one_sentence(data, tmp_path, monkeypatch):  # noqa: F811
    def full(self, **row):
        raise OSError(28, "No space left on device", str(self.path))

    monkeypatch.setattr(Metrics, "add", full)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl: No space left on device; what was"):
        train(toy_recipe(data), tmp_path / "run", device="cpu")


# --- what stays ---------------------------------------------------------------------------------


def test_as_many_checkpoints_stay_as_are_asked_for_and_no_fewer_than_the_mean_takes(data, tmp_path):  # noqa: F811
    def kept(name: str, *asked: str) -> list[int]:
        recipe = make_recipe(toy_recipe(data).plain(), ["log.tensorboard=false", *asked])
        train(recipe, tmp_path / name, device="cpu")
        return [state.step_of(path) for path in checkpoints(tmp_path / name)]

    assert kept("more", "train.keep=4", "train.average=1") == [5, 10, 15, 20]
    assert kept("fewer", "train.keep=1", "train.average=2") == [15, 20]
    assert kept("ema", "train.keep=1", "train.ema=0.5") == [20]


def test_the_best_weights_stay_whatever_comes_after(data, tmp_path, capfd):  # noqa: F811
    run = tmp_path / "run"
    asked = ["log.tensorboard=false", "train.best=nll", "train.average=1", "train.validate_every=5"]
    recipe = make_recipe(toy_recipe(data, rate=0.05, warmup=1).plain(), asked)
    train(recipe, run, device="cpu")
    rows = [r for r in read_metrics(run) if "validation_nll" in r]
    best = min(rows[:-1], key=lambda r: r["validation_nll"])
    kept = json.loads((run / "best" / "best.json").read_text(encoding="utf-8"))
    assert (kept["step"], kept["value"]) == (best["step"], best["validation_nll"])
    assert rows[-1]["validation_nll"] == best["validation_nll"]
    same_weights(run / "model.safetensors", run / "best" / "model.safetensors")
    before = read_metrics(run)
    train(None, run, device="cpu", resume=True)  # no row twice
    assert read_metrics(run) == before
    flip(run / "best" / "model.safetensors")
    train(None, run, device="cpu", resume=True)
    assert "is damaged (it has other bytes than were written); the last" in capfd.readouterr().err


def test_a_run_is_not_asked_for_fewer_steps_than_it_has_taken(data, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    train(toy_recipe(data, steps=6), run, device="cpu")
    kept = (run / "recipe.yaml").read_bytes()
    with pytest.raises(
        ConfigError, match=r"train\.steps=4: the run is at step 6 already; give .*=6"
    ):
        train(None, run, device="cpu", resume=True, overrides=["train.steps=4"])
    assert (run / "recipe.yaml").read_bytes() == kept


def test_a_kill_between_two_names_leaves_the_best_there_was(tmp_path):
    best = Best(tmp_path, "f1")
    assert best.see(torch.nn.Linear(2, 2), 10, {"f1": 0.5})
    os.replace(tmp_path / "best", tmp_path / "best.old")
    again = Best(tmp_path, "f1")
    assert again.kept == best.kept
    assert not again.see(torch.nn.Linear(2, 2), 20, {"f1": 0.4})
    assert again.read(say) is not None


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no names of open files here")
def test_the_best_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done: list[tuple[str, str]] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(file):  # type: ignore[no-untyped-def]
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{file}")).name))
        sync(file)

    def noted_replace(old, new):  # type: ignore[no-untyped-def]
        done.append(("name", Path(new).name))
        replace(old, new)

    best = Best(tmp_path, "f1")
    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    for step in (1, 2):
        done.clear()
        assert best.see(torch.nn.Linear(2, 2), step, {"f1": 0.1 * step})
        named = done.index(("name", "best"))
        written = {name for what, name in done[:named] if what == "sync"}
        assert written == {"model.safetensors.part", "best.json.new", "best.part"}
        assert done[named + 1] == ("sync", tmp_path.name)


def test_a_correlation_that_is_no_number_is_not_the_best_for_good(tmp_path):
    best, model = Best(tmp_path, "pearson"), torch.nn.Linear(2, 2)
    assert best.see(model, 10, {"pearson": math.nan})
    assert best.see(model, 20, {"pearson": -0.5})
    assert not best.see(model, 30, {"pearson": math.nan})
    assert Best(tmp_path, "pearson").kept["step"] == 20


def test_a_run_begins_without_what_one_left_that_never_saved(data, tmp_path, monkeypatch):  # noqa: F811
    run, asked = tmp_path / "run", ["train.best=nll", "train.validate_every=2", "log.every=1"]
    asked += ["log.tensorboard=false", "log.statistics=2"]
    stop_at(monkeypatch, 4, crash)
    with pytest.raises(MemoryError):
        train(make_recipe(toy_recipe(data, steps=8).plain(), asked), run, device="cpu")
    monkeypatch.undo()
    assert (run / "best").is_dir()
    assert not checkpoints(run)
    with (run / "metrics.jsonl").open("a") as file:  # one that looks before its first step
        file.write('{"step": 0, "validation_nll": 1.0}\n')
    other = make_recipe(toy_recipe(data, steps=3).plain(), ["model.dim=16", "train.best=nll"])
    train(other, run, device="cpu")
    assert json.loads((run / "best" / "best.json").read_text(encoding="utf-8"))["step"] == 3
    assert {row["step"] for row in read_metrics(run)} == {3}
    assert not (run / "statistics.jsonl").exists()


def test_halves_of_checkpoints_go_with_the_next_save(data, tmp_path):  # noqa: F811
    half = tmp_path / "run" / "checkpoints" / "step-00000003.part"
    half.mkdir(parents=True)
    train(toy_recipe(data, steps=5), tmp_path / "run", device="cpu")
    assert not half.exists()


# --- data and company --------------------------------------------------------------------------


def test_other_data_than_the_run_began_with_is_refused_until_allowed(data, tmp_path, capfd):  # noqa: F811
    mine, run = tmp_path / "mine.tsv", tmp_path / "run"
    shutil.copy(data, mine)
    train(toy_recipe(mine, steps=5), run, device="cpu")
    longer = {"resume": True, "overrides": ["train.steps=8"], "device": "cpu"}
    lines = mine.read_text().splitlines(True)
    mine.write_text("".join([*lines[:100], "one dog\tek kut\n", *lines[100:]]))
    with pytest.raises(CheckpointError, match=r"is not what .* began with.*--allow-changed-data"):
        train(None, run, **longer)
    assert checkpoints(run)[-1].name == "step-00000005"
    assert train(None, run, allow_changed_data=True, **longer).steps == 8
    assert "the training data has changed" in capfd.readouterr().err
    train(None, run, device="cpu", resume=True)  # and from now on that is its data


def test_a_second_process_is_refused_while_the_first_lives(run):
    before = (run / "model.safetensors").read_bytes()
    with only_one(run), pytest.raises(TrainingError, match=rf"another process \({os.getpid()}\)"):
        train(None, run, device="cpu", resume=True)
    assert (run / "model.safetensors").read_bytes() == before
    train(None, run, device="cpu", resume=True)


def test_a_finished_run_is_extended_as_if_it_had_been_longer(straight, data, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    train(toy_recipe(data, steps=12), run, device="cpu")
    result = train(None, run, device="cpu", resume=True, overrides=["train.steps=20"])
    assert result.steps == 20
    same_weights(run / "model.safetensors", straight / "model.safetensors")
    assert steps_of(run, "validation_nll") == [10, 20]
    assert read_recipe(run / "recipe.yaml") == toy_recipe(data)


@pytest.mark.parametrize(
    "key", ["model.dim=64", "data.path=x", "train.seed=3", "tokenizer.vocab=9"]
)
def test_what_a_resumed_run_is_made_of_stays(key, run):
    with pytest.raises(ConfigError, match=rf"keeps its {key.split('=')[0]}; what may change is tr"):
        train(None, run, device="cpu", resume=True, overrides=[key])


def test_a_new_run_has_a_recipe_and_no_overrides(data, tmp_path):  # noqa: F811
    for recipe, overrides in ((None, []), (toy_recipe(data), ["train.steps=3"])):
        with pytest.raises(TrainingError, match="are for resume=True; a new run has a recipe"):
            train(recipe, tmp_path / "run", overrides=overrides)


def test_five_per_cent_are_held_out_and_a_thousand_at_most():
    def held_out(count: int) -> int:
        pairs = [(f"a {i}", f"b {i}") for i in range(count)]
        found = open_data(PairData(), Corpus(pairs))
        assert found.validation is not None
        return len(list(found.validation))

    assert [held_out(count) for count in (4, 400, 4_000, 21_000)] == [1, 20, 200, 1_000]
    with pytest.raises(Exception, match=r"data\.hold_out=5: "):
        open_data(PairData(hold_out=5), Corpus([("a", "b"), ("c", "d")]))


# --- recipes and outputs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.decoder_layers=0", r"model\.decoder_layers=0 must be at least 1"),
        ("model.dim=33", r"model\.dim=33 must be even; try 34"),
        ("model.heads=5", r"model\.heads=5 must divide model\.dim=256; try 1, 2, 4"),
        ("model.dropout=1.5", r"model\.dropout=1\.5 must be in 0 … 1"),
        ("model.act=relo", r"model\.act='relo' is not a choice; try relu"),
        ("optim.weight_decay=-1", r"optim\.weight_decay=-1\.0 must be at least 0"),
        ("optim.rate=.inf", r"optim\.rate=inf must be a finite number"),
        ("train.seed=-1", r"train\.seed=-1 must be at least 0"),
        ("train.seed=99999999999999999999", r"train\.seed=9+ must be at most"),
        ("train.pool=-1", r"train\.pool=-1 must be at least 0"),
        ("data.hold_out=-1", r"data\.hold_out=-1 must be at least 1"),
        ("data.hold_out=0", r"data\.hold_out=0 must be at least 1"),
        ("tokenizer.vocab=-1", r"tokenizer\.vocab=-1 must be at least 6"),
        ("tokenizer.dropout=2", r"tokenizer\.dropout=2\.0 must be in 0 … 1"),
        ("decode.beams=0", r"decode\.beams=0 must be at least 1"),
        ("decode.length_penalty=.nan", r"decode\.length_penalty=nan must be a finite number"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_name_in_the_recipe(override, said):
    with pytest.raises(ConfigError, match=said):
        make_recipe({}, [override])


def test_a_mixer_by_name_is_that_of_every_layer_and_survives_the_file():
    mixer = "model.mixer={is: Window, left: 5, right: 3}"
    for objective, sides in (("seq2seq", 2), ("causal-lm", 1), ("masked-lm", 1)):
        recipe = make_recipe({"objective": objective}, [mixer])
        tree = recipe.model.tree(find_objective(objective).shape)
        blocks = [block for stack in tree.stacks.values() for block in stack.blocks]
        assert len(blocks) == 3 * sides
        assert {block.attention.mixer for block in blocks} == {Window(5, 3)}
        assert make_recipe(yaml.safe_load(recipe.to_yaml())) == recipe
    with pytest.raises(ConfigError, match=r"mixer\.is='Windw' is not known; did you mean Window"):
        make_recipe({}, ["model.mixer={is: Windw}"])
    with pytest.raises(ConfigError, match=r"mixer=Norm.* does not fit this slot; it takes .*Full"):
        make_recipe({}, ["model.mixer={is: Norm}"])


def test_a_key_that_stands_twice_is_refused_with_its_line(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("train:\n  steps: 5\n  rate: 1.0\n  steps: 6\n")
    with pytest.raises(ConfigError, match=r"r\.yaml, line 4: steps stands there twice; keep one"):
        read_recipe(path)


def test_an_output_that_cannot_be_is_refused_before_any_work(data, tmp_path, monkeypatch):  # noqa: F811
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "run"):
        with pytest.raises(TrainingError, match=rf"--out {out}: .*file is no directory"):
            train(toy_recipe(data), out, device="cpu")
    assert file.read_text() == "mine"
    with pytest.raises(TrainingError, match="is a directory; give a file"):
        check_file(tmp_path)
    with pytest.raises(TrainingError, match="there is no directory"):
        check_file(tmp_path / "no" / "out.txt")
    monkeypatch.setattr("allformer.train.outputs.os.access", lambda path, mode: False)
    for check, path in ((check_directory, tmp_path / "x" / "y"), (check_file, file)):
        with pytest.raises(TrainingError, match="cannot be written to; choose another"):
            check(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- what is said ------------------------------------------------------------------------------


def test_the_progress_line_says_nll_for_what_the_log_calls_nll(data, tmp_path, capfd):  # noqa: F811
    train(toy_recipe(data, steps=4), tmp_path / "run", device="cpu")
    (row,) = [row for row in read_metrics(tmp_path / "run") if "nll" in row]
    assert f"step 4/4  nll {row['nll']:.3f}  tok/s" in capfd.readouterr().err


def test_a_run_that_diverged_says_so_in_few_digits(data, tmp_path, capfd):  # noqa: F811
    train(
        toy_recipe(data, steps=10, rate=30.0, warmup=1, clip=100.0), tmp_path / "run", device="cpu"
    )
    said = capfd.readouterr().err
    assert "the run has diverged: validation nll " in said
    assert "is far worse than guessing (4.09)" in said
    assert max(map(len, said.splitlines())) < 200


def test_a_run_that_learns_does_not_say_that_it_diverged(data, tmp_path, capfd):  # noqa: F811
    train(toy_recipe(data, steps=10), tmp_path / "run", device="cpu")
    assert "diverged" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("work", "load", "count"),
    [
        ((1000, 20_000), 0.0, 1),  # little work
        ((4096, 60_000_000), 0.0, 4),
        ((4096, 60_000_000), 1.2, 3),  # a busy machine
        ((4096, 60_000_000), 19.0, 1),
    ],
)
def test_threads_are_what_the_work_and_the_machine_allow(work, load, count, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("allformer.train.threads.os.getloadavg", lambda: (load, 0.0, 0.0))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert pick_threads(*work) == count
        with threads(count, torch.device("cpu")) as said:
            assert torch.get_num_threads() == count
            assert said.startswith(f"threads: {count} of 4, which is" if count < 4 else "")
        assert torch.get_num_threads() == 4
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        assert pick_threads(*work) == 4
    finally:
        torch.set_num_threads(before)


def test_a_run_can_be_opened_while_it_is_being_trained(data, tmp_path, monkeypatch):  # noqa: F811
    from allformer.tasks.texts import translate

    run, found = tmp_path / "run", []

    def look(stepper) -> None:
        with pytest.warns(
            UserWarning, match=r"training has not ended; its newest .* step 5"
        ) as said:
            found.append(translate(run, "one dog"))
        assert sum("has not ended" in str(warning.message) for warning in said) == 1

    stop_at(monkeypatch, 8, look)
    train(toy_recipe(data, steps=10), run, device="cpu")
    assert isinstance(found[0], str)


def test_every_file_of_a_run_is_readable_as_the_umask_says(run):
    for path in (run / "model.safetensors", checkpoints(run)[-1] / "model.safetensors"):
        assert path.stat().st_mode & 0o777 == (run / "recipe.yaml").stat().st_mode & 0o777
