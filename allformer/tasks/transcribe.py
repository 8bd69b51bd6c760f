"""`transcribe`: what is said in a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.mel import RATE
from allformer.sound.read import blocks
from allformer.sound.spectrogram import Spectrogram
from allformer.sound.voice import voices
from allformer.speech.align import WordTimer
from allformer.speech.batched import Batched
from allformer.speech.options import TranscribeOptions
from allformer.speech.result import Segment, Transcript
from allformer.speech.windows import Transcriber, WordTimes
from allformer.tasks.speech_pipeline import DEFAULT, SpeechPipeline, SpeechSource, as_speech

Audio = str | Path | bytes | Any  # a file, what one holds, or samples at 16 kHz
LONGEST = 30.0  # seconds of a window
PIECE = 30 * RATE  # samples that are prepared together


def transcribe(
    audio: Audio | Sequence[Audio],
    model: SpeechSource = DEFAULT,
    *,
    words: bool = False,
    batch: int | None = None,
    dtype: torch.dtype | str | None = None,
    progress: Callable[[float, float], None] | None = None,
    heard: Callable[[Segment], None] | None = None,
    **options: Any,
) -> Any:
    """What is said in a recording, with the times of its segments.

    >>> transcribe("talk.mp3").text
    ' And so, my fellow Americans, …'
    >>> transcribe("talk.mp3", "openai/whisper-large-v3", language="zh", beam_size=5).segments

    `audio` is a file (wav, flac, mp3, ogg), its bytes, or samples at 16 kHz; a list of them gives a
    list. A recording may be hours long: no more than a window of it is held. `options` are those of
    `TranscribeOptions`, with openai-whisper's names and defaults. With `words` segments have their
    words, and when those are said. With `batch`, for long recordings: they are cut where nobody
    speaks, and so many windows are decoded side by side. `dtype` is what is
    computed in, as `open_speech` has it; "int8" is fastest on a CPU. `progress` hears how many
    seconds of how many are done, `heard` each segment as soon as it is written down.
    """
    asked = TranscribeOptions(**options)
    pipeline = as_speech(model, dtype)
    how: dict[str, Any] = {"words": words, "batch": batch, "progress": progress, "heard": heard}
    if isinstance(audio, list | tuple):
        return [transcribe_one(pipeline, one, asked, **how) for one in audio]
    return transcribe_one(pipeline, audio, asked, **how)


def transcribe_one(
    pipeline: SpeechPipeline,
    audio: Audio,
    options: TranscribeOptions,
    *,
    words: bool | WordTimes = False,
    batch: int | None = None,
    progress: Callable[[float, float], None] | None = None,
    heard: Callable[[Segment], None] | None = None,
) -> Transcript:
    """One recording, window by window, or in batches of windows; `words` may be who times them."""
    sound = spectrogram(audio, pipeline.bins)
    transcriber = _transcriber(pipeline, audio, sound, options, words, batch)
    if sound.silent:  # where openai-whisper may write a word that nobody said
        return transcriber.transcript
    for segments in transcriber:
        if heard is not None:
            for segment in segments:
                heard(segment)
        if progress is not None:
            progress(min(transcriber.seek, sound.frames) / 100, sound.frames / 100)
    return transcriber.transcript


def _transcriber(
    pipeline: SpeechPipeline,
    audio: Audio,
    sound: Spectrogram,
    options: TranscribeOptions,
    words: bool | WordTimes,
    batch: int | None,
) -> Transcriber | Batched:
    listener = pipeline.listener
    if batch is not None:
        source = audio if isinstance(audio, str | Path | bytes) else _samples(audio)
        spans = voices(source, longest=LONGEST)
        return Batched(listener, sound, spans, options, words=bool(words), batch=batch)
    if not isinstance(words, bool):
        return Transcriber(listener, sound, options, words)
    transcriber = Transcriber(listener, sound, options)
    if words:  # cut as the language is, which may have been listened for
        language = transcriber.options.language
        transcriber.words = WordTimer(listener, language, options.task)
    return transcriber


def spectrogram(audio: Audio, bins: int) -> Spectrogram:
    """The log-mel frames of a recording, which lie on disk if it is long."""
    if isinstance(audio, str | Path | bytes):
        return Spectrogram(blocks(audio), bins)
    samples = _samples(audio)
    pieces = (samples[i : i + PIECE] for i in range(0, len(samples), PIECE))
    return Spectrogram(pieces, bins)


def _samples(audio: Any) -> Tensor:
    """Samples as fp32, refused if they are none."""
    try:
        samples = torch.as_tensor(audio)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"audio is a {type(audio).__name__}; give a file, its bytes, or samples at 16 kHz"
        ) from None
    if samples.ndim != 1 or not samples.is_floating_point():
        raise DataError(
            f"audio is {samples.dtype} {tuple(samples.shape)}; give one channel of floats in "
            f"−1 … 1 at 16 kHz"
        )
    if not len(samples):
        raise DataError("audio has no samples; give some")
    if not bool(samples.isfinite().all()):
        raise DataError("audio has samples that are no numbers; look at how it was made")
    return samples.float()
