"""Recordings and their texts are read, learnt, scored and shown by recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

import allformer as af
from allformer.data.recordings import open_recordings
from allformer.errors import ConfigError, DataError
from allformer.evaluate.objective import evaluate_objective, open_any, recipe_of, told_objective
from allformer.sound import load_processor, write
from allformer.text.tiktoken import openai_whisper_tokenizer
from allformer.train.loop import open_objective, train
from allformer.train.objectives.transcription import Transcription
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from allformer.train.spoken.wording import Wording
from tests.unit.test_whisper_tokenizer import vocabulary

WORDS = ("the", "cat", "hat", "that cat")
SMALL = {"dim": 16, "heads": 2, "feed": 32, "layers": 1}


def tones(folder: Path, counts: dict[str, int]) -> Path:
    """Each word is a pitch of its own, at 8 kHz."""
    for split, count in counts.items():
        rows = ["path\ttext\tspeaker"]
        for i in range(count):
            at = torch.arange(1600 + 400 * (i % 3)) / 8000
            wave = 0.3 * torch.sin(2 * torch.pi * (300 + 400 * (i % len(WORDS))) * at)
            (folder / "clips").mkdir(parents=True, exist_ok=True)
            write(folder / "clips" / f"{split}{i}.wav", wave, 8000)
            rows.append(f"{split}{i}.wav\t{WORDS[i % len(WORDS)]}\tAda")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tones(tmp_path_factory.mktemp("tones"), {"train": 12, "val": 4, "test": 5})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_whisper(tmp_path_factory.mktemp("whisper"))


def small_whisper(folder: Path, seconds: int = 2, room: int = 24) -> Path:
    """A small Whisper as transformers writes it, with a tokeniser."""
    file, size = vocabulary(folder)
    tokenizer = openai_whisper_tokenizer(size, file)
    ids = tokenizer.special_ids
    torch.manual_seed(0)
    sizes = {
        "vocab_size": size, "num_mel_bins": 80, "d_model": 16, "encoder_layers": 1,
        "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": 50 * seconds,
        "max_target_positions": room, "pad_token_id": ids["eos"], "bos_token_id": ids["eos"],
        "eos_token_id": ids["eos"], "decoder_start_token_id": ids["eos"] + 1,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes))
    model.save_pretrained(folder / "small")
    WhisperFeatureExtractor(chunk_length=seconds).save_pretrained(folder / "small")
    tokenizer.save(folder / "small")
    (folder / "small" / "normalizer.json").write_text('{"hat": "cat"}')
    return folder / "small"


def recipe(folder: Path, **more: Any) -> Any:
    said = {
        "objective": "transcription",
        "data": {"path": str(folder), "seconds": 0.5, "max_length": 24},
        "tokenizer": {"kind": "characters", "vocab": 40},
        "model": SMALL,
        "train": {"steps": 2, "batch_rows": 4, "validate_every": 1, "best": "wer"},
    }
    return make_recipe(said | more)


def from_checkpoint(data: Path, checkpoint: Path, **more: Any) -> Any:
    said = {
        "objective": "transcription", "data": {"path": str(data)},
        "model": {"checkpoint": str(checkpoint)},
        "train": {"steps": 2, "batch_rows": 4, "validate_every": 1},
    }  # fmt: skip
    return make_recipe(said | more)


def opened(asked: Any, tokenizer: Any = None) -> Any:
    from allformer.train.tokenizing import make_tokenizer

    objective = open_objective(asked)
    objective.encode(tokenizer or make_tokenizer(objective, lambda line: None), lambda line: None)
    return objective


# --- data -----------------------------------------------------------------------------------------


def test_tables_are_read_with_their_splits_and_columns(data, tmp_path):
    found = open_recordings(data)
    assert {name: len(part) for name, part in found.items()} == {"train": 12, "val": 4, "test": 5}
    assert found["val"][1].text == "cat"
    assert found["val"][1].speaker == "Ada"
    plain = tmp_path / "mine.tsv"
    plain.write_text(f"{data / 'clips' / 'val0.wav'}\tHello there.\n")
    assert [one.text for one in open_recordings(plain)["train"]] == ["Hello there."]


def test_spoken_digits_are_split_as_is_usual(tmp_path):
    for number in (0, 4, 5, 17):
        write(tmp_path / f"3_theo_{number}.wav", torch.zeros(800), 8000)
    found = open_recordings(tmp_path)
    assert [one.path.stem for one in found["test"]] == ["3_theo_0", "3_theo_4"]
    assert [one.path.stem for one in found["train"]] == ["3_theo_17", "3_theo_5"]
    assert {(one.text, one.speaker) for one in found["train"]} == {("three", "theo")}


@pytest.mark.parametrize(
    ("line", "why"),
    [("gone.wav\thello", "line 1: there is no sound file 'gone.wav'"), ("gone.wav", "no tab")],
)
def test_a_bad_table_is_refused_by_its_line(tmp_path, line, why):
    (tmp_path / "train.tsv").write_text(line + "\n")
    with pytest.raises(DataError, match=why):
        open_recordings(tmp_path)


def test_a_folder_without_recordings_says_what_is_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"train\.tsv"):
        open_recordings(tmp_path)


def test_what_is_too_long_is_left_out_aloud(data):
    said: list[str] = []
    asked = recipe(data, data={"path": str(data), "seconds": 0.26, "max_length": 8})
    objective = open_objective(asked)
    from allformer.train.tokenizing import make_tokenizer

    objective.encode(make_tokenizer(objective, said.append), said.append)
    # 4 of 12 are of 0.3 s; of the others those that say "that cat" have too many characters.
    assert said[1:2] == ["training: 6 recordings, 0.00 hours; 6 left out, over 0.26 s or 8 tokens"]


# --- batches --------------------------------------------------------------------------------------


def test_whisper_is_given_language_and_task_and_says_the_rest(data, checkpoint):
    objective = opened(from_checkpoint(data, checkpoint))
    batch = objective.collate(objective.validation, np.array([1]))
    names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    tokenizer = objective._tokenizer
    before = [tokenizer.token_to_id(name) for name in names]
    end = tokenizer.token_to_id("<|endoftext|>")
    text = tokenizer.encode(" cat", add_special_tokens=False)
    row, labels = batch.read[0].tolist(), batch.labels[0].tolist()
    assert row[: 4 + len(text)] == [*before, *text]
    assert labels[: 4 + len(text)] == [-100] * 3 + [*text, end]
    assert set(labels[4 + len(text) :]) <= {-100}
    assert batch.tokens == len(text) + 1


def test_a_whisper_of_english_alone_takes_no_language(monkeypatch, checkpoint):
    from allformer.text.load import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    monkeypatch.setattr("allformer.train.spoken.wording._english_alone", lambda tokenizer: True)
    assert len(Wording.of(tokenizer, "en", "transcribe").before) == 2
    with pytest.raises(ConfigError, match="English alone"):
        Wording.of(tokenizer, "zh", "transcribe")


def test_it_hears_what_the_checkpoints_feature_extractor_hears(data, checkpoint):
    objective = opened(from_checkpoint(data, checkpoint))
    batch = objective.onto(objective.collate(objective.validation, np.arange(3)), "cpu")
    processor = load_processor(checkpoint)
    want = processor([one.path for one in objective.recordings[1][:3]])
    assert batch.sound.shape == (3, 80, 200)
    # 16 bits: what is read from files at another rate is rounded once more.
    assert (batch.sound - want).abs().mean() < 0.02


def test_the_loss_is_transformers(data, checkpoint):
    objective = opened(from_checkpoint(data, checkpoint))
    batch = objective.onto(objective.collate(objective.validation, np.arange(4)), "cpu")
    loss, nll = objective.loss(af.load(checkpoint), batch)
    theirs = WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        want = theirs(
            input_features=batch.sound, decoder_input_ids=batch.read, labels=batch.labels
        ).loss
    assert float(loss.detach()) / batch.tokens == pytest.approx(float(want), rel=1e-5)
    assert float(nll) == pytest.approx(float(loss.detach()))


def test_filler_counts_for_nothing(data, checkpoint):
    objective = opened(from_checkpoint(data, checkpoint))
    model, index = af.load(checkpoint), np.arange(3)
    plain, framed = (
        objective.collate(objective.validation, index, frame) for frame in (None, objective.frame())
    )
    assert len(framed.sound) == 4
    assert framed.tokens == plain.tokens
    a, b = (objective.loss(model, objective.onto(x, "cpu"))[1] for x in (plain, framed))
    assert float(a) == pytest.approx(float(b), rel=1e-5)


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "fresh"
    train(recipe(data), out, device="cpu")
    return out


def test_a_recogniser_is_trained_from_scratch_and_scored(run, data):
    told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row["validation_wer"] >= 0 for row in told if "validation_nll" in row)
    pipeline = open_any(str(run), "cpu")
    found = recipe_of(run)
    assert found is not None
    figures = evaluate_objective(pipeline, found, split="test", say=lambda line: None)
    assert figures["examples"] == 5
    assert {"wer", "cer", "accuracy", "perplexity"} <= figures.keys()
    assert load_processor(run).settings.chunk_length == 1
    assert af.load(run).config.encoder.longest == 25


def test_its_report_lets_one_listen(run):
    kept = Predictions.load(run)
    assert kept is not None
    assert len(kept.sounds) == 4
    assert {one.wanted for one in kept.sounds} == set(WORDS)
    assert kept.sounds[0].name == "Ada"
    assert kept.figures["wer"] >= 0


def test_a_whisper_is_tuned_and_keeps_its_files(data, checkpoint, tmp_path):
    train(from_checkpoint(data, checkpoint), tmp_path / "tuned", device="cpu")
    assert (tmp_path / "tuned" / "normalizer.json").is_file()
    for name in ("tokenizer.json", "preprocessor_config.json", "generation_config.json"):
        assert (tmp_path / "tuned" / name).is_file(), name
    pipeline = open_any(str(checkpoint), "cpu")
    assert told_objective(pipeline) == "transcription"


def test_error_rates_are_of_tidied_texts(data, checkpoint, monkeypatch):
    objective = opened(from_checkpoint(data, checkpoint))
    said = [" The.", "Cat!", " hat", "that that cat"]  # the checkpoint spells hat as cat
    monkeypatch.setattr(Transcription, "transcripts", lambda self, *more: said)
    figures = objective.metrics(None, objective.validation)
    assert figures["wer"] == pytest.approx(1 / 5)
    assert figures["cer"] == pytest.approx(5 / 17)


@pytest.mark.parametrize("model", [{"preset": "t5-small"}, {"preset": "bert-base"}])
def test_a_model_that_hears_nothing_is_refused(data, model):
    with pytest.raises(ConfigError, match="hears nothing"):
        open_objective(recipe(data, model=model))


def test_what_hides_spans_by_chance_is_not_compiled(data, checkpoint):
    spans = {"encoder.source.hide_frames": {"is": "Spans", "share": 0.2}}
    model = {"checkpoint": str(checkpoint), "change": spans}
    assert open_objective(from_checkpoint(data, checkpoint, model=model)).waits
    assert not open_objective(from_checkpoint(data, checkpoint)).waits
