"""The objective sound-codec: recordings and their splits, crops, whole runs, scores."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.checkpoint.weights import read_tensors
from allformer.cli.main import app
from allformer.errors import ConfigError, DataError
from allformer.explain.headline import figure_name
from allformer.run_report import report_run
from allformer.sound.write import write
from allformer.train import step as stepping
from allformer.train.batch import keyed
from allformer.train.best import Best
from allformer.train.loop import train
from allformer.train.objectives.sound_codec import SoundCodec
from allformer.train.optim import Sgd
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.state import checkpoints
from allformer.train.step import Stepper, StepSettings
from allformer.train.stream import batches_of
from allformer.train.waves.data import WaveData
from allformer.train.waves.recordings import Recordings, drawn_crops, middle_crops

RATE = 8000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve tones with a little noise, 0.1 to 0.3 s; files 0_… and 1_… are for the test."""
    folder = tmp_path_factory.mktemp("recordings")
    chance = torch.Generator().manual_seed(0)
    for i in range(12):
        t = torch.arange(800 + 150 * i) / RATE
        tone = 0.2 * torch.sin(2 * torch.pi * (200 + 40 * i) * t)
        noise = 0.01 * torch.randn(len(t), generator=chance)
        write(folder / f"{i % 6}_tone_{i}.wav", tone + noise, RATE)
    return folder


MODEL = {
    "is": "Encodec", "rate": RATE, "dim": 8, "codes": 16, "bandwidths": [0.8, 2.4],
    "trunk": {"is": "Seanet", "hidden": 4, "ratios": [5, 4, 2], "lstm": 1},
}  # fmt: skip
JUDGES = {"windows": [128, 32], "width": 2, "after": 2}


def recipe(data: Path, judges: Any = JUDGES, balance: float | None = None, **asked: Any) -> Recipe:
    usual = {"steps": 6, "batch_rows": 4, "save_every": 3, "validate_every": 50}
    return make_recipe(
        {
            "objective": {"is": "sound-codec", "judges": judges, "balance": balance},
            "data": {"path": str(data), "test": "[01]_*", "seconds": 0.1, "hold_out": 2},
            "model": MODEL,
            "optim": {"rate": 1e-3, "betas": [0.8, 0.99]},
            "schedule": {"kind": "constant", "warmup": 2},
            "train": {**usual, **asked},
            "log": {"every": 2, "tensorboard": False},
        }
    )


# --- data -----------------------------------------------------------------------------------------


def test_names_say_what_is_for_the_test_and_some_of_the_rest_is_held_out(data):
    section = WaveData(path=str(data), test="[01]_*", hold_out=2)
    train_files, val = section.opened()
    _, test = section.scored(None, None)[1].opened()
    assert (len(train_files), len(val), len(test)) == (6, 2, 4)
    assert {file.name[0] for file in test} == {"0", "1"}
    assert not set(val) & set(train_files)
    assert not set(test) & set(train_files + val)
    assert section.opened() == (train_files, val)
    assert section.scored(None, "train")[0] == "train"


def test_folders_say_it_too(data, tmp_path):
    for i, file in enumerate(sorted(data.iterdir())[:4]):
        (tmp_path / ("train", "dev", "test", "other")[i]).mkdir()
        (tmp_path / ("train", "dev", "test", "other")[i] / file.name).write_bytes(file.read_bytes())
    section = WaveData(path=str(tmp_path))
    train_files, val = section.opened()
    assert [f.parent.name for f in train_files] == ["other", "train"]
    assert [f.parent.name for f in val] == ["dev"]
    name, other = section.scored(str(data), None)  # other data: all of it
    assert (name, len(other.opened()[1])) == ("all", 12)


def test_data_that_cannot_serve_is_refused_with_a_way_out(data, tmp_path):
    with pytest.raises(DataError, match=r"data\.path is missing.*--data"):
        WaveData().opened()
    with pytest.raises(DataError, match="is no folder; give one with recordings"):
        WaveData(path=str(tmp_path / "none")).opened()
    with pytest.raises(DataError, match="holds no sound"):
        WaveData(path=str(tmp_path)).opened()
    with pytest.raises(DataError, match="leaves no recording"):
        WaveData(path=str(data), test="*").opened()
    with pytest.raises(ConfigError, match=r"data\.hold_out=12\.0 leaves nothing"):
        WaveData(path=str(data), hold_out=12.0).opened()


def test_crops_are_drawn_by_seed_and_epoch_alone_and_lie_in_silence(data):
    recordings = Recordings(sorted(data.iterdir()), RATE)
    first, again, other = (drawn_crops(recordings, 1000, 3, epoch) for epoch in (1, 1, 2))
    every = np.arange(len(first))
    assert np.array_equal(first.waves(every), again.waves(every))
    assert not np.array_equal(first.waves(every), other.waves(every[: len(other)]))
    counts = np.bincount(first.which)
    assert np.array_equal(counts, np.maximum(1, recordings.lengths // 1000))
    for i, start in zip(first.which, first.starts, strict=True):
        rest = int(recordings.lengths[i]) - 1000
        assert min(rest, 0) <= start <= max(rest, 0)
    whole = middle_crops(recordings, 5000)
    assert np.array_equal(whole.waves(np.array([0]))[0, :800], recordings.cut(0, 0, 800))
    assert not whole.waves(np.array([0]))[0, 800:].any()


def test_recordings_that_do_not_fit_into_memory_are_cut_from_their_files(data, monkeypatch):
    files = sorted(data.iterdir())
    kept = Recordings(files, RATE)
    monkeypatch.setattr("allformer.train.waves.recordings.MOST_BYTES", 100)
    read = Recordings(files, RATE)
    assert kept.fits
    assert not read.fits
    for start in (-200, 0, 300, 700):
        assert np.array_equal(kept.cut(1, start, 500), read.cut(1, start, 500))


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("runs") / "once"
    return folder, train(recipe(data, balance=0.9), folder, device="cpu").rows


def test_a_run_goes_on_exactly_where_it_stopped_judges_and_codebooks_too(run, data, tmp_path):
    once, rows = run
    train(recipe(data, balance=0.9, steps=3), tmp_path / "twice", device="cpu")
    again = train(None, tmp_path / "twice", device="cpu", resume=True, overrides=["train.steps=6"])
    first, second = (read_tensors(folder) for folder in (once, tmp_path / "twice"))
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    one, other = (
        torch.load(checkpoints(folder)[-1] / "state.pt", weights_only=True)["objective"]
        for folder in (once, tmp_path / "twice")
    )
    assert one["weights"]
    assert one["optimizer"]["state"]
    assert one["lengths"].all()  # of every loss
    assert torch.equal(one["lengths"], other["lengths"])
    for name, x in one["weights"].items():
        assert torch.equal(x, other["weights"][name]), name
    assert again.rows[-2]["judging"] == rows[-2]["judging"]
    assert {"judging", "fooling", "matching", "nll_spectral", "nll_wave"} <= rows[0].keys()


def test_figures_are_of_each_bit_rate(run):
    _, rows = run
    found = {name for name in rows[-1] if "_at_" in name}
    assert found == {
        f"validation_{name}_at_{bits}" for name in ("si_sdr", "spectral") for bits in (800, 2400)
    }
    assert 0 < rows[-1]["validation_codes_used"] <= 1


def test_the_best_spectral_distance_is_the_least_and_the_best_si_sdr_the_most(tmp_path):
    model: Any = af.build(af.config.from_dict(MODEL), seed=0)
    for figure, values in (
        ("spectral_at_800", (9.0, 8.0, 9.0)),
        ("si_sdr_at_800", (1.0, 2.0, 1.0)),
    ):
        best = Best(tmp_path, figure)
        assert [best.see(model, i, {figure: x}) for i, x in enumerate(values)] == [1, 1, 0]


def test_a_run_lets_one_hear_its_reconstructions(run):
    shown = Predictions.load(run[0])
    assert shown is not None
    assert [v.name for v in shown.sounds[0].versions] == ["0.8 kbit/s", "2.4 kbit/s"]
    assert all(v.sound and v.score is not None for one in shown.sounds for v in one.versions)


def test_its_page_is_of_sound_and_has_a_row_for_each_bit_rate(run, tmp_path):
    page = report_run(run[0], tmp_path / "page.html").page.read_text(encoding="utf-8")
    assert "as up to 3 codes out of 16, 2.4 kbit/s where the recordings take 128." in page
    assert "small grid of tokens" not in page  # an image codec's
    rows = re.findall(r'<tr><th scope="row" class="n">(.*?)</th>', page)
    assert rows == ["0.8", "2.4"]
    assert "crops/s" in page
    assert figure_name("si_sdr_at_800")[0] == "SI-SDR at 0.8 kbit/s, dB"


def test_a_run_is_a_codec_and_becomes_transformers_own(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    codec = af.load(run[0])
    wave = 0.1 * torch.randn(1, 1, 800)
    codes = codec.encode(wave)
    assert codes.shape == (1, 3, 20)
    af.save(codec, tmp_path / "hf", family="encodec")
    theirs = transformers.EncodecModel.from_pretrained(tmp_path / "hf").eval()
    found = theirs.encode(wave, bandwidth=2.4)
    assert torch.equal(found.audio_codes[0], codes)
    again = theirs.decode(found.audio_codes, found.audio_scales)[0]
    torch.testing.assert_close(again, codec.decode(codes), atol=1e-5, rtol=1e-4)


def test_evaluate_scores_the_test_split_or_other_recordings(run, data):
    said = CliRunner().invoke(app, ["evaluate", str(run[0]), "--device", "cpu", "--json"])
    assert said.exit_code == 0, said.output
    assert '"split": "test", "examples": 4' in said.output
    assert '"si_sdr_at_2400"' in said.output
    other = ["evaluate", str(run[0]), "--data", str(data), "--split", "val", "--device", "cpu"]
    said = CliRunner().invoke(app, other)
    assert said.exit_code == 0, said.output
    assert "spectral at 800" in said.output


# --- steps ----------------------------------------------------------------------------------------


def opened(data: Path, judges: Any = JUDGES, **more: Any) -> SoundCodec:
    objective = SoundCodec(recipe(data, judges, **more))
    objective.open()
    objective.encode(None, lambda line: None)
    return objective


def stepped(data: Path, pieces: list[list[int]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of codec and judges after two steps on the same crops, cut into pieces."""
    objective = opened(data)
    objective.recipe.options.__dict__["restart"] = 0.0  # what restarts is drawn by chance
    objective.recipe.options.__dict__["unquantised"] = 0.0
    torch.manual_seed(0)
    model: Any = af.build(objective.config(None), seed=0).train()
    objective.recipe = replace(objective.recipe, optim=Sgd(momentum=0.0))  # Adam hides the size
    stepper = Stepper(model, objective, StepSettings(objective.recipe.optim, 0.0))
    assert objective.following is not None
    for book in objective.following.books:
        book.begun.fill_(1.0)
    crops = objective.examples(0)
    for step in (3, 4) if pieces else ():
        objective.at(step)
        stepper([objective.collate(crops, np.array(piece)) for piece in pieces], 1e-2)
    assert objective.duel is not None
    return model.state_dict(), objective.duel.state()["weights"]


def test_accumulated_micro_batches_are_the_whole_batch_for_codec_codebooks_and_judges(data):
    whole, parts = stepped(data, [[0, 1, 2, 3, 4]]), stepped(data, [[0, 1, 2], [3, 4]])
    for name, x in whole[0].items():
        torch.testing.assert_close(x, parts[0][name], rtol=1e-4, atol=1e-5, msg=name)
    for name, x in whole[1].items():
        torch.testing.assert_close(x, parts[1][name], rtol=1e-4, atol=1e-5, msg=name)
    started = stepped(data, [])
    assert not torch.equal(
        whole[0]["decoder.layers.0.length"], started[0]["decoder.layers.0.length"]
    )
    assert not torch.equal(whole[1]["judges.0.score.g"], started[1]["judges.0.score.g"])


def test_filler_counts_for_nothing(data):
    objective = opened(data)
    model: Any = af.build(objective.config(None), seed=0).train()
    objective.meet(model, False)
    frame = objective.frame()
    assert frame is not None
    model.eval()  # so that nothing is learnt between the two
    batches = [objective.collate(objective.examples(0), np.arange(3), f) for f in (None, frame)]
    assert [len(batch.waves) for batch in batches] == [3, 4]
    (one, nll), (other, again) = (objective.loss(model, batch) for batch in batches)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(nll, again)


def test_books_are_drawn_by_the_batchs_place_and_from_those_asked_for(data):
    objective = opened(data)
    batch = objective.collate(objective.examples(0), np.zeros(400, np.int64))
    assert objective.ready(batch).books.tolist() == [3] * 400  # validation: all
    one, again, other = (
        objective.ready(keyed(batch, *place)).books for place in ((0, 1), (0, 1), (0, 2))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.unique().tolist() == [0, 1, 2, 3]
    assert 140 < int((one == 0).sum()) < 260


def test_judges_are_heard_only_after_their_step(data):
    objective = opened(data)
    model: Any = af.build(objective.config(None), seed=0).train()
    objective.meet(model, False)
    index = batches_of(objective, objective.examples(0), objective.recipe.train)[0]
    batch = objective.collate(objective.examples(0), index)
    model.eval()
    losses = []
    for step in (1, 2, 3):
        objective.at(step)
        losses.append(objective.loss(model, batch)[0])
    assert torch.equal(losses[0], losses[1])
    assert losses[2][0] > losses[1][0]


def test_gradients_found_at_the_wave_are_those_of_the_whole_loss(data):
    objective = opened(data)
    model: Any = af.build(objective.config(None), seed=0).train()
    objective.meet(model, False)
    assert objective.following is not None
    for book in objective.following.books:
        book.begun.fill_(1.0)
    batch = objective.collate(objective.examples(0), np.arange(3), objective.frame())
    objective.at(3)
    assert objective.form
    found = []
    for learns in (True, False):
        loss, _ = objective.loss(model.train(learns), batch)
        found.append((loss, torch.autograd.grad(loss.sum(), list(model.parameters()))))
    torch.testing.assert_close(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


class Again:
    """In the place of a captured graph: the same work again, from the same tensors."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.replays = call, 0
        self.result = call()

    def replay(self) -> Any:
        self.replays += 1
        return self.result


def test_each_form_of_a_step_is_a_graph_of_its_own_with_its_gradients(data, monkeypatch):
    monkeypatch.setattr(stepping, "Captured", Again)
    monkeypatch.setattr(stepping, "on_side_stream", lambda call: call())
    objective = opened(data, {**JUDGES, "every": 2}, balance=0.9)
    model: Any = af.build(objective.config(None), seed=0).train()
    stepper = Stepper(model, objective, StepSettings(objective.recipe.optim, 0.0, compile=True))
    stepper.captures, stepper._loss = True, None  # as on a GPU
    batch = objective.collate(objective.examples(0), np.arange(4), objective.frame())
    first = next(model.parameters())
    for number in range(1, 13):
        objective.at(number)
        stepper([batch], 1e-3)
        if number > 8:  # both are captured
            assert first.grad is stepper._graphs[objective.form].gradients[0]
    replays = [stepper._graphs[form].captured for form in (True, False)]
    assert [each.replays for each in replays if isinstance(each, Again)] == [2, 4]


def test_it_learns_tones(data, tmp_path):
    """Without judges, in a few steps: the distances fall."""
    asked = recipe(data, None, steps=30, batch_rows=6, save_every=200)
    rows = train(asked, tmp_path / "run", device="cpu").rows
    assert rows[-2]["nll_wave"] < 0.8 * rows[0]["nll_wave"]
    assert rows[-2]["nll_spectral"] < 0.8 * rows[0]["nll_spectral"]


@pytest.mark.slow
def test_what_it_learns_is_heard_at_every_bit_rate(data, tmp_path):
    """Tones that it was taught: SI-SDR rises through the codes, and more codes say more."""
    asked = recipe(data, None, steps=400, batch_rows=6, save_every=500, validate_every=40)
    asked = replace(asked, data=replace(asked.data, validation="train"))
    rows = train(asked, tmp_path / "run", device="cpu").rows
    seen = [row for row in rows if "validation_nll" in row]
    assert seen[-1]["validation_si_sdr_at_2400"] > seen[0]["validation_si_sdr_at_2400"] + 6
    assert seen[-1]["validation_si_sdr_at_2400"] > seen[-1]["validation_si_sdr_at_800"] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ema": 0.99}, r"train\.ema=0\.99 is not for codecs"),
        ({"precision": "fp16"}, r"train\.precision='fp16' is too narrow.*bf16"),
        ({"z_loss": 0.1}, r"train\.z_loss"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change, said, data):
    with pytest.raises(ConfigError, match=said):
        SoundCodec(recipe(data, **change)).config(None)


def test_models_that_do_not_fit_are_refused(data):
    for model, said in (
        ({"preset": "vq-28"}, "trains an Encodec, but the model is a VQVAE"),
        ({"preset": "encodec-48khz"}, "one channel"),
    ):
        asked = recipe(data)
        changed = make_recipe({"objective": "sound-codec", "model": model})
        with pytest.raises(ConfigError, match=said):
            SoundCodec(changed).config(None)
    with pytest.raises(ConfigError, match=r"objective\.books=\(4,\) has more than the model's 3"):
        SoundCodec(
            make_recipe({"objective": {"is": "sound-codec", "books": [4]}, "model": MODEL})
        ).config(None)
    assert asked.options.judges is not None
