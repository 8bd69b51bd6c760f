"""Transcribing against openai-whisper on the same weights: text, segments, log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from allformer.speech.decoding import decode
from allformer.speech.language import detect_language
from allformer.speech.options import DecodingOptions
from allformer.tasks.speech_pipeline import SpeechPipeline
from allformer.tasks.transcribe import transcribe
from tests import hearing

NEAR = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hearing")


def theirs(model: Any, wave: Tensor, **options: Any) -> dict[str, Any]:
    torch.manual_seed(options.pop("seed", 0))
    found: dict[str, Any] = hearing.openai().transcribe(model, wave.numpy(), fp16=False, **options)
    return found


def same(ours: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert ours["text"] == wanted["text"]
    assert ours["language"] == wanted["language"]
    assert len(ours["segments"]) == len(wanted["segments"])
    for mine, other in zip(ours["segments"], wanted["segments"], strict=True):
        assert mine.keys() == other.keys()
        for name, value in other.items():
            if isinstance(value, float):
                assert mine[name] == pytest.approx(value, abs=NEAR), name
            else:
                assert mine[name] == value, name


# By what they are about. Random weights seldom end a text: `sample_len` keeps it short.
CASES: dict[str, dict[str, Any]] = {
    "greedy, and again at higher temperatures": {
        "temperature": (0.0, 0.8), "logprob_threshold": -1.0,
    },
    "seeded draws, the best of three": {"temperature": 0.7, "best_of": 3, "seed": 5},
    "beams": {"temperature": 0.0, "beam_size": 5},
    "patience": {"temperature": 0.0, "beam_size": 3, "patience": 2.0, "length_penalty": 0.4},
    "impatience": {"temperature": 0.0, "beam_size": 4, "patience": 0.5},
    "a prompt": {"temperature": 0.0, "initial_prompt": "Dashwood, Norland Park."},
    "a prompt that is carried": {
        "temperature": 0.0, "initial_prompt": "Norland Park.", "carry_initial_prompt": True,
    },
    "each window alone": {"temperature": 0.0, "condition_on_previous_text": False},
    "clips": {"temperature": 0.0, "clip_timestamps": (30.5, 35.0, 2.0, 4.0, 33.0)},
    "silence is skipped": {
        "temperature": 0.0, "no_speech_threshold": 0.0, "logprob_threshold": None,
    },
    "no times": {"temperature": 0.0, "without_timestamps": True},
    "nothing suppressed": {
        "temperature": 0.0, "suppress_tokens": None, "suppress_blank": False,
        "max_initial_timestamp": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_long_recording_is_written_down_as_openai_whisper_does(case: str, folder: Path) -> None:
    options = {"sample_len": 10, "logprob_threshold": None, **CASES[case]}
    model, pipeline = hearing.both(hearing.small(folder))
    wave = hearing.noise(36.0, seed=1)
    ours = transcribe(wave, pipeline, **options).to_dict()
    told = {name: list(x) if name == "clip_timestamps" else x for name, x in options.items()}
    wanted = theirs(model, wave, **told)
    assert wanted["segments"] or case == "silence is skipped"
    same(ours, wanted)


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_the_language_is_heard_and_the_task_told(task: str, folder: Path) -> None:
    model, pipeline = hearing.both(hearing.small(folder, hearing.MANY))
    wave = hearing.noise(6.0, seed=2)
    options = {"temperature": 0.0, "sample_len": 9, "task": task}
    same(transcribe(wave, pipeline, **options).to_dict(), theirs(model, wave, **options))


def test_the_chances_of_languages_are_the_same(folder: Path) -> None:
    whisper = hearing.openai()
    model, pipeline = hearing.both(hearing.small(folder, hearing.MANY))
    mel = whisper.log_mel_spectrogram(hearing.noise(30.0).numpy())[None]
    _, [wanted] = whisper.detect_language(model, mel)
    [chances] = detect_language(pipeline.listener, pipeline.listener.encode(mel))
    assert chances.keys() == wanted.keys()
    for code, chance in wanted.items():
        assert chances[code] == pytest.approx(chance, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"beam_size": 3}, {"temperature": 0.0, "prefix": "He was", "prompt": "Chapter one."}],
    ids=["beams", "prefix and prompt"],
)
def test_several_windows_side_by_side_are_as_each_alone(
    options: dict[str, Any], folder: Path
) -> None:
    whisper = hearing.openai()
    model, pipeline = hearing.both(hearing.small(folder))
    waves = [hearing.noise(30.0, seed=seed).numpy() for seed in range(3)]
    mel = torch.stack([whisper.log_mel_spectrogram(wave) for wave in waves])
    found = decode(
        pipeline.listener, pipeline.listener.encode(mel), DecodingOptions(sample_len=12, **options)
    )
    asked = whisper.DecodingOptions(sample_len=12, fp16=False, language="en", **options)
    for mine, each in zip(found, mel, strict=True):
        other = whisper.decode(model, each, asked)
        assert list(mine.tokens) == other.tokens
        assert mine.text == other.text
        assert mine.avg_logprob == pytest.approx(other.avg_logprob, abs=NEAR)
        assert mine.no_speech_prob == pytest.approx(other.no_speech_prob, rel=1e-3)
        assert mine.compression_ratio == other.compression_ratio
    assert len({mine.tokens for mine in found}) == len(waves)


# ---------------------------------------------------------------- real speech


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, SpeechPipeline]:
    return hearing.both(hearing.tiny_en())


def test_a_read_sentence_comes_out_as_it_was_read(tiny: tuple[Any, SpeechPipeline]) -> None:
    model, pipeline = tiny
    file = hearing.sentences()[0]
    ours = transcribe(file, pipeline)
    assert "John Dashwood had then leisure to consider how much" in ours.text
    same(ours.to_dict(), theirs(model, hearing.glued([file], [0.0])))


REAL: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"beam_size": 5},
    "patience": {"beam_size": 5, "patience": 2.0, "length_penalty": 0.6},
    "impatience": {"beam_size": 4, "patience": 0.5},
    "fallback": {"logprob_threshold": -0.1, "temperature": (0.0, 0.3, 0.7), "best_of": 2},
    "a prompt": {"initial_prompt": "Jane Austen, Dashwood."},
    "a prompt that is carried": {"initial_prompt": "Jane Austen", "carry_initial_prompt": True},
    "each window alone": {"condition_on_previous_text": False},
    "clips": {"clip_timestamps": (2.0, 9.0, 20.0)},
    "no times": {"without_timestamps": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REAL)
def test_a_minute_of_read_speech_with_silences_is_the_same(
    case: str, tiny: tuple[Any, SpeechPipeline]
) -> None:
    model, pipeline = tiny
    files = hearing.sentences()
    wave = hearing.glued([*files, *files], [3.0, 0.5, 8.0, 1.0, 3.0] * 2)
    options = REAL[case]
    told = {name: list(x) if name == "clip_timestamps" else x for name, x in options.items()}
    same(transcribe(wave, pipeline, **options).to_dict(), theirs(model, wave, **told))


@pytest.mark.slow
def test_where_nobody_speaks_the_same_is_heard(tiny: tuple[Any, SpeechPipeline]) -> None:
    model, pipeline = tiny
    wave = hearing.noise(35.0)
    same(transcribe(wave, pipeline).to_dict(), theirs(model, wave))


def test_the_samples_of_numpy_are_read_too(folder: Path) -> None:
    _, pipeline = hearing.both(hearing.small(folder))
    wave, options = hearing.noise(3.0), {"sample_len": 4, "temperature": 0.0}
    of_numpy = transcribe(np.asarray(wave, dtype=np.float64), pipeline, **options)
    assert of_numpy == transcribe(wave, pipeline, **options)
