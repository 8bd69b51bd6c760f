"""AudioLM: what the stages learn from, and sound that goes on from sound."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from typer.testing import CliRunner

import allformer as af
from allformer.audiolm.generate import AudioLM, _window, find_stages, open_audiolm
from allformer.audiolm.saying import say
from allformer.audiolm.stage_file import read_stage
from allformer.audiolm.tokens import STAGES, Stage, without_repeats
from allformer.audiolm.units import fit_recordings
from allformer.checkpoint.run import load_run
from allformer.cli.main import app
from allformer.core.loss import IGNORE
from allformer.errors import CheckpointError, ConfigError, DataError
from allformer.run_report import report_run
from allformer.sound import read, write
from allformer.train.batch import uncounted
from allformer.train.loop import open_objective, train
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from tests import speaking

SECONDS = 1.0
NEEDS = {"semantic": ("units",), "coarse": ("units", "codec"), "fine": ("codec",)}


def recipe(root: Path, stage: str, **more: Any) -> Recipe:
    found: dict[str, Any] = {
        "objective": {
            "is": "sound-tokens", "stage": stage, "coarse": 1,
            **{name: str(root / name) for name in NEEDS[stage]},
        },
        "data": {
            "path": str(root / "sounds"), "seconds": SECONDS, "voice": "_([a-z]+)_", "join": 1.5,
            "pause": [0.05, 0.1], "passes": 2, "validation": "_1$",
        },
        "model": {"dim": 16, "heads": 2, "feed": 32, "layers": 1, "dropout": 0.0},
        "optim": {"name": "adamw", "rate": 1e-2},
        "train": {"steps": 2, "batch_tokens": 600, "validate_every": 10, "save_every": 10},
        "log": {"tensorboard": False},
    }  # fmt: skip
    for section, values in more.items():
        found[section] = {**found[section], **values}
    return make_recipe(found)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, units, a codec of three books, and a short run of each stage."""
    root = tmp_path_factory.mktemp("audiolm")
    found, _ = fit_recordings(speaking.encoder(), speaking.recordings(), clusters=6, layer=1)
    found.save(root / "units")
    af.save(speaking.codec(books=3), root / "codec", family="allformer")
    speaking.write_recordings(root / "sounds", each=12)
    for stage in STAGES:
        train(recipe(root, stage), root / "runs" / stage, device="cpu")
    return root


@pytest.fixture(scope="module")
def kit(there: Path) -> AudioLM:
    return open_audiolm(there / "runs", device="cpu")


def opened(root: Path, stage: str) -> Any:
    objective = open_objective(recipe(root, stage))
    objective.encode(None, lambda line: None)
    return objective


# --- learning -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_each_label_is_the_next_id_and_nothing_that_is_given_counts(
    there: Path, stage: str
) -> None:
    check_batch(opened(there, stage))


def check_batch(objective: Any) -> None:
    """Row by row."""
    examples = objective.examples(0)
    index = np.array([1, 0])
    batch = objective.collate(examples, index)
    ids, labels = batch.ids.tolist(), batch.labels.tolist()
    counted = 0
    for i in index:
        row, given = examples.rows[int(i)].tolist(), int(examples.given[i])
        own, said = ids[: len(row) - 1], labels[: len(row) - 1]
        assert own == row[:-1]
        assert said == [IGNORE] * (given - 1) + row[given:]
        counted += len(row) - given
        ids, labels = ids[len(row) - 1 :], labels[len(row) - 1 :]
    assert not ids
    assert batch.tokens == counted


def test_rows_are_what_is_heard_of_the_same_seconds(there: Path) -> None:
    objective = opened(there, "coarse")
    stage, heard = objective.stage, objective._held[0]
    row = objective.validation.rows[0]
    part = objective.ears.cut(heard, 0.0, SECONDS)
    assert row.tolist() == stage.row(part.units, part.codes).ids.tolist()
    split = row.tolist().index(stage.then)
    assert row[1:split].tolist() == without_repeats(part.units).tolist()
    assert np.array_equal(stage.read(row[split + 1 :]), part.codes[:1])
    assert part.codes.shape[1] == 50


def test_an_epoch_reads_other_parts_and_a_seed_decides_which(there: Path) -> None:
    objective = opened(there, "fine")
    first, again, second = (objective.examples(epoch).rows.ids for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert np.array_equal(objective.validation.rows.ids, objective.validation.rows.ids)
    assert objective.examples(0).lengths.max() <= objective.longest


def test_a_frame_is_filled_up_with_what_counts_for_nothing(there: Path) -> None:
    objective = opened(there, "coarse")
    examples, frame = objective.examples(0), objective.frame()
    plain = objective.collate(examples, np.arange(2))
    filled = objective.collate(examples, np.arange(2), frame)
    model = af.build(objective.config(None), seed=0)
    assert len(filled.ids) == frame.tokens
    sums = [objective.loss(model, batch)[1] for batch in (plain, filled)]
    assert torch.allclose(*sums, rtol=1e-5)
    assert filled.tokens == plain.tokens


def test_a_run_keeps_all_that_it_takes(there: Path) -> None:
    for stage in STAGES:
        run = there / "runs" / stage
        facts = read_stage(run)
        assert facts.stage.name == stage
        assert facts.seconds == SECONDS
        assert {name for name in ("units", "codec") if (run / name).is_dir()} == set(NEEDS[stage])
        opened_run = load_run(run)
        assert opened_run.tokenizer is None
        assert opened_run.model.config.decoder.source.vocab == facts.stage.size


def test_the_last_stage_lets_one_hear_how_held_out_recordings_go_on(there: Path) -> None:
    assert Predictions.load(there / "runs" / "coarse") is None
    found = Predictions.load(there / "runs" / "fine")
    assert found is not None
    assert [(one.name, one.prompt) for one in found.sounds] == [("high", 0.74), ("low", 0.74)]
    page = report_run(there / "runs" / "fine", say=lambda line: None).page
    text = page.read_text(encoding="utf-8")
    assert found.sounds[0].sound[:200] in text
    assert "--audio prompt.wav" in text
    report_run(there / "runs" / "coarse", say=lambda line: None)


def test_a_run_is_scored_as_training_scored_it(there: Path) -> None:
    run = there / "runs" / "coarse"
    call = ["evaluate", str(run), "--device", "cpu", "--json"]
    found = CliRunner().invoke(app, call)
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout.splitlines()[-1])
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert told["nll"] == pytest.approx(last["validation_nll"], rel=1e-5)
    assert told["split"] == "val"
    refused = CliRunner().invoke(app, [*call, "--split", "test"])
    assert "is the val split" in str(refused.exception)


@pytest.mark.slow
def test_two_batches_share_one_graph(there: Path) -> None:
    objective = opened(there, "coarse")
    examples, frame = objective.examples(0), objective.frame()
    model = af.build(objective.config(None), seed=0).eval()
    graphs = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda batch: objective.loss(model, batch), backend=graphs, fullgraph=True, dynamic=False
    )
    for first in range(2):
        batch = objective.collate(examples, np.arange(first, first + 2), frame)
        plain, _ = objective.loss(model, batch)
        torch.testing.assert_close(compiled(uncounted(batch))[0], plain, rtol=1e-4, atol=1e-4)
    assert graphs.frame_count == 1


def test_recipes_that_cannot_work_are_refused(there: Path) -> None:
    with pytest.raises(ConfigError, match=r"objective.units=.* is not needed by stage=fine"):
        recipe(there, "fine", objective={"units": "x"})
    with pytest.raises(ConfigError, match=r"objective.codec is missing, and stage=coarse needs"):
        open_objective(recipe(there, "coarse", objective={"codec": None}))
    with pytest.raises(CheckpointError, match=r"objective.units='.*': .* has no units"):
        open_objective(recipe(there, "semantic", objective={"units": str(there / "none")}))
    with pytest.raises(ConfigError, match="nothing to say"):
        open_objective(recipe(there, "fine", objective={"coarse": 3}))
    with pytest.raises(ConfigError, match=r"coarse=7 must be 1 … 3"):
        open_objective(recipe(there, "coarse", objective={"coarse": 7}))
    with pytest.raises(ConfigError, match=r"data.passes=2 are for recordings that are joined"):
        recipe(there, "fine", data={"join": 0.0})
    with pytest.raises(DataError, match="is missing: say where the recordings are"):
        open_objective(recipe(there, "fine", data={"path": None}))
    small = open_objective(recipe(there, "coarse", train={"batch_tokens": 80}))
    with pytest.raises(ConfigError, match=r"train.batch_tokens=80 is less than a row"):
        small.config(None)


# --- saying -------------------------------------------------------------------------------------


def test_codes_come_in_the_order_of_their_books_and_each_row_has_its_own_count(
    kit: AudioLM,
) -> None:
    speaking = kit.stages["fine"]
    codes = np.random.default_rng(0).integers(0, 8, (3, 50))
    prompts = [speaking.stage.prompt(codes=codes[:, :n], known=2) for n in (30, 50)]
    said = say(speaking.model, speaking.stage, prompts, [10, 24], temperature=5.0)
    assert [len(ids) for ids in said] == [10, 24]
    for ids in said:
        assert speaking.stage.read(ids).shape[0] == 2  # which refuses an id of another book


@pytest.mark.parametrize("stage", STAGES)
def test_the_likeliest_is_said_of_what_may_come(kit: AudioLM, stage: str) -> None:
    check_likeliest(kit.stages[stage].model, kit.stages[stage].stage)


def check_likeliest(model: Any, stage: Stage) -> None:
    """Step by step through the whole model, without a cache, each row alone."""
    codes = np.random.default_rng(1).integers(0, 8, (3, 20))
    prompts = [stage.prompt([1, 2, 4][:n], codes, known=n) for n in (2, 3)]
    for prompt, said in zip(
        prompts, say(model, stage, prompts, [7, 7], temperature=1e-5), strict=True
    ):
        ids = prompt.tolist()
        for number in range(7):
            may = [*stage.may_say(number), *([stage.end] if stage.name == "semantic" else [])]
            may = [i for i in may if stage.name != "semantic" or i != ids[-1]]
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([ids])).logits[0, -1]
            best = max(may, key=lambda i: float(scores[i]))
            if best == stage.end:
                assert len(said) == number
                break
            assert said[number] == best
            ids.append(best)


def test_units_come_without_repeats_and_without_marks(kit: AudioLM) -> None:
    speaking = kit.stages["semantic"]
    prompts = [speaking.stage.prompt([1, 2, 3]), speaking.stage.prompt([])]
    chance = torch.Generator().manual_seed(0)
    said = say(speaking.model, speaking.stage, prompts, [40, 40], temperature=9.0, generator=chance)
    for ids, before in zip(said, (3, -1), strict=True):
        whole = [before, *ids.tolist()]
        assert all(0 <= unit < 6 for unit in ids)
        assert without_repeats(whole).tolist() == whole


def test_a_padded_prompt_is_followed_by_what_would_follow_it_alone(kit: AudioLM) -> None:
    speaking = kit.stages["coarse"]
    codes = np.random.default_rng(0).integers(0, 8, (3, 20))
    short = speaking.stage.prompt([1, 2], codes, known=4)
    long = speaking.stage.prompt([1, 2, 3, 1, 4, 5], codes, known=9)
    how: dict[str, Any] = {"temperature": 1e-4}
    both = say(speaking.model, speaking.stage, [short, long], [8, 8], **how)
    alone = say(speaking.model, speaking.stage, [short], [8], **how)
    assert both[0].tolist() == alone[0].tolist()


def test_windows_of_fine_codes_go_to_the_end_half_of_each_known() -> None:
    assert _window(0, 200, 100) == (0, 100)
    assert _window(100, 200, 100) == (50, 150)
    assert _window(150, 200, 100) == (100, 200)
    assert _window(190, 200, 100) == (100, 200)  # a whole one, as in training
    assert _window(10, 60, 100) == (0, 60)


# --- going on -----------------------------------------------------------------------------------


def test_sound_goes_on_for_as_long_as_asked_and_the_prompt_comes_first(kit: AudioLM) -> None:
    prompt = speaking.tone(300.0, 0.43)
    heard: list[float] = []
    found = af.continue_sound(
        kit, prompt, rate=speaking.RATE, seconds=2.2, seed=1, progress=heard.append
    )
    frames = 21  # whole ones of 0.43 s
    assert (found.rate, found.begin) == (speaking.RATE, frames * 160)
    assert len(found.new) == round(2.2 * speaking.RATE)
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(2.2)
    assert len(heard) > 2  # rounds: a row has one second
    codes = kit.codec.encode(prompt[None, None, : frames * 160])
    assert torch.allclose(found.wave[: 10 * 160], kit.codec.decode(codes)[0, 0, : 10 * 160])


def test_a_seed_decides_and_prompts_of_several_lengths_go_together(kit: AudioLM) -> None:
    prompts = [speaking.tone(300.0, s) for s in (0.2, 0.9)]
    how: dict[str, Any] = {"rate": speaking.RATE, "seconds": 0.7}
    first, again = (af.continue_sound(kit, prompts, seed=3, **how) for _ in range(2))
    other = af.continue_sound(kit, prompts, seed=4, **how)
    assert [len(one.new) for one in first] == [5600, 5600]
    assert [one.begin for one in first] == [1600, 7200]
    assert all(torch.equal(a.wave, b.wave) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].new, other[0].new)


def test_sound_begins_by_itself(kit: AudioLM) -> None:
    found = af.continue_sound(kit, seconds=1.2)
    assert found.begin == 0
    assert len(found.wave) == round(1.2 * speaking.RATE)


def test_the_command_writes_a_file(there: Path, tmp_path: Path) -> None:
    write(tmp_path / "prompt.wav", speaking.tone(300.0, 0.5), speaking.RATE)
    out = tmp_path / "out.wav"
    call = ["generate", str(there / "runs" / "fine"), "--out", str(out), "--seconds", "0.5"]
    call += ["--device", "cpu"]
    found = CliRunner().invoke(app, [*call, "--audio", str(tmp_path / "prompt.wav"), "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout.splitlines()[-1])
    assert told == {"file": str(out), "seconds": 1.0, "begin": 0.5, "rate": speaking.RATE}
    assert len(read(out, rate=None)) == speaking.RATE
    gone = CliRunner().invoke(app, [*call, "--audio", str(tmp_path / "elsewhere.wav")])
    assert "is not there" in str(gone.exception)
    refused = CliRunner().invoke(app, [*call, "--num-beams", "4"])
    assert "--num-beams is for text" in str(refused.exception)
    missing = CliRunner().invoke(app, [*call[:2], "--seconds", "1"])
    assert "--out is missing" in str(missing.exception)
    text = CliRunner().invoke(app, [*call[:3], "out.txt"])  # before any stage is opened
    assert "out.txt has no ending of sound; end it in .wav" in str(text.exception)


def test_a_folder_without_a_stage_says_which(there: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run of the semantic and the coarse stage"):
        open_audiolm(tmp_path)
    runs = tmp_path / "runs"
    for stage in ("semantic", "coarse"):
        shutil.copytree(there / "runs" / stage, runs / stage)
    with pytest.raises(CheckpointError, match=r"no run of the fine stage \(there is: coarse"):
        open_audiolm(runs)
    shutil.copytree(there / "runs" / "fine", runs / "whatever")
    assert find_stages(runs)["fine"].name == "whatever"
    shutil.copytree(there / "runs" / "fine", runs / "twice")
    with pytest.raises(CheckpointError, match="two runs of the fine stage, twice and whatever"):
        open_audiolm(runs)


def test_stages_that_do_not_belong_together_are_refused(there: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(there / "runs", runs, ignore=shutil.ignore_patterns("checkpoints"))
    for stage, what in (("semantic", "units"), ("fine", "codec")):
        file = runs / stage / "sound_tokens.json"
        kept = file.read_text()
        file.write_text(json.dumps({**json.loads(kept), what: "another"}))
        with pytest.raises(CheckpointError, match=f"trained with different {what}"):
            open_audiolm(runs)
        file.write_text(kept)
    file = runs / "semantic" / "sound_tokens.json"
    kept = file.read_text()
    file.write_text(json.dumps({**json.loads(kept), "seconds": 9.0}))
    with pytest.raises(CheckpointError, match=r"rows of 9 seconds, but .* of 1: units and codes"):
        open_audiolm(runs)
    file.write_text(kept)
    (runs / "coarse" / "sound_tokens.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not what training writes"):
        open_audiolm(runs)


def test_a_coarse_stage_that_says_all_books_needs_no_fine_one(there: Path, tmp_path: Path) -> None:
    asked = recipe(there, "coarse", objective={"coarse": 3}, train={"steps": 1})
    train(asked, tmp_path / "coarse", device="cpu")
    shutil.copytree(there / "runs" / "semantic", tmp_path / "semantic")
    kit = open_audiolm(tmp_path, device="cpu")
    assert set(kit.stages) == {"semantic", "coarse"}
    assert len(af.continue_sound(kit, seconds=0.3).wave) == round(0.3 * speaking.RATE)


def test_what_cannot_be_asked_for_is_refused_first(kit: AudioLM) -> None:
    for options, told in (
        ({"seconds": 0}, "seconds=0 must be above 0"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"temperature": 0.0}, "temperature=0.0 must be"),
        ({"top_k": 0}, "top_k=0 must be"),
    ):
        with pytest.raises(ConfigError, match=told):
            af.continue_sound("nowhere", **options)
    with pytest.raises(ConfigError, match="rate is missing"):
        af.continue_sound(kit, torch.zeros(800))
    with pytest.raises(DataError, match="samples of one channel"):
        af.continue_sound(kit, torch.zeros(2, 800), rate=8000)


def test_a_stage_knows_its_row_by_its_seconds() -> None:
    stage = Stage("coarse", units=6, codes=8, coarse=1, books=3)
    assert stage.longest(50, 50) == 102
