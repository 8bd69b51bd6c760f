"""Words, batches and streams by the task and the command line, with a small random Whisper."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from allformer.cli.main import app
from allformer.errors import ConfigError
from allformer.sound.voice import voices
from allformer.speech.alignment_heads import alignment_heads
from allformer.speech.pieces import from_microphone
from allformer.tasks.transcribe import transcribe
from allformer.tasks.transcribe_live import transcribe_live
from tests.unit import test_transcribe as spoken

model, pipeline = spoken.model, spoken.pipeline  # fixtures
BROKEN = "\ufffd"  # random bytes are seldom characters
FEW = {"temperature": 0.0, "sample_len": 6, "language": "en"}


def voice(seconds: float) -> torch.Tensor:
    """A hum with overtones that comes and goes."""
    at = torch.arange(int(seconds * 16_000)) / 16_000
    hum = sum(torch.sin(2 * torch.pi * 140 * k * at) / k for k in range(1, 9))
    return 0.2 * torch.as_tensor(hum) * (torch.sin(2 * at) > 0)


def raw(wave: torch.Tensor) -> bytes:
    return (wave.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes()


def test_words_are_within_their_segments(pipeline: Any) -> None:
    found = transcribe(voice(5.0), pipeline, words=True, **FEW)
    words = [word for segment in found.segments for word in segment.said]
    assert words
    for segment in found.segments:
        if segment.said:
            text = "".join(word.word for word in segment.said)
            assert text.replace(BROKEN, "") == segment.text.replace(BROKEN, "")
            assert segment.start <= segment.said[0].start <= segment.said[-1].end <= segment.end
    assert all(0 <= word.start <= word.end <= 5.0 and 0 <= word.probability <= 1 for word in words)


@pytest.mark.parametrize("words", [False, True])
def test_a_batch_hears_what_is_voiced(words: bool, pipeline: Any) -> None:
    wave = torch.cat([torch.zeros(64_000), voice(40.0), torch.zeros(64_000)])
    spans = voices(wave, longest=30.0)
    assert len(spans) > 1
    found = transcribe(wave, pipeline, batch=4, words=words, **FEW)
    assert len({segment.seek for segment in found.segments}) >= len(spans)
    assert min(segment.start for segment in found.segments) > 3.5
    assert found.duration == 48.0
    assert all((segment.words is not None) == words for segment in found.segments)
    assert transcribe(wave.clone(), pipeline, batch=1, words=words, **FEW).text == found.text


def test_silence_in_a_batch_is_an_empty_text(pipeline: Any) -> None:
    assert transcribe(torch.zeros(80_000), pipeline, batch=2, **FEW).text == ""


def test_a_stream_ends_with_everything_settled(pipeline: Any) -> None:
    updates = list(transcribe_live(torch.split(voice(6.0), 3000), pipeline, **FEW))
    assert len(updates) > 4
    assert updates[-1].pending == ()
    starts = [word.start for update in updates for word in update.settled]
    assert starts == sorted(starts)
    assert updates[-1].seconds == pytest.approx(6.0)


def test_heads_that_are_not_there_are_refused(pipeline: Any) -> None:
    assert alignment_heads(pipeline.model) == ((0, 0), (0, 1))  # nobody knows this model
    assert alignment_heads(pipeline.model, ((0, 1),)) == ((0, 1),)
    with pytest.raises(ConfigError, match="layer 0, head 2"):
        alignment_heads(pipeline.model, ((0, 2),))
    with pytest.raises(ConfigError, match="did you mean tiny"):
        alignment_heads(pipeline.model, "tinny")
    pipeline.model.provenance.generation = {"alignment_heads": [[0, 1]]}
    try:
        assert alignment_heads(pipeline.model) == ((0, 1),)
    finally:
        pipeline.model.provenance.generation = None


def run(*words: Any, sound: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["transcribe", *map(str, words)], input=sound)


def test_the_command_writes_words_and_batches(model: Path, tmp_path: Path) -> None:
    file = spoken.save_wave(tmp_path / "a.wav", voice(4.0))
    quick = ("--model", model, "--temperature", "0", "--device", "cpu", "--language", "en")
    done = run(file, *quick, "--timestamps", "word", "--batch", 2, "--format", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert all("words" in segment for segment in told["segments"])


def test_the_command_hears_a_pipe(model: Path) -> None:
    quick = ("--stream", "-", "--model", model, "--temperature", "0", "--language", "en")
    done = run(*quick, "--format", "json", sound=raw(voice(3.0)))
    assert done.exit_code == 0, done.output
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[-1]["seconds"] == 3.0
    assert told[-1]["pending"] == ""
    plain = run(*quick, sound=raw(voice(3.0)))
    lines = plain.stdout.splitlines()
    assert all(line.startswith("[00:0") for line in lines)
    assert run(*quick, sound=b"").stdout == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a.wav", "--stream"), "one source"),
        (("-", "--stream", "--batch", 4), "--batch 4 needs a whole recording"),
        (("-", "--stream", "--format", "srt"), "--format srt with --stream"),
        (("-", "--stream", "--timestamps", "none"), "leave it out"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(words: tuple[Any, ...], told: str) -> None:
    done = run(*words)
    assert done.exit_code != 0
    assert told in str(done.exception)


def test_a_microphone_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = voice(0.5)

    class Microphone:
        def __init__(self, *how: Any, callback: Any) -> None:
            self.callback = callback

        def __enter__(self) -> None:
            for part in torch.split(heard, 1600):
                self.callback(raw(part), len(part), None, None)

        def __exit__(self, *fault: object) -> None:
            return

    module = ModuleType("sounddevice")
    module.RawInputStream = Microphone  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    pieces = from_microphone()
    torch.testing.assert_close(next(pieces), heard, atol=1e-3, rtol=0)
    pieces.close()  # type: ignore[attr-defined]
