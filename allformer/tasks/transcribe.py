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
from allformer.speech.options import TranscribeOptions
from allformer.speech.result import Segment, Transcript
from allformer.speech.windows import Transcriber, WordTimes
from allformer.tasks.speech_pipeline import DEFAULT, SpeechPipeline, SpeechSource, as_speech

Audio = str | Path | bytes | Any  # a file, what one holds, or samples at 16 kHz
PIECE = 30 * RATE  # samples that are prepared together


def transcribe(
    audio: Audio | Sequence[Audio],
    model: SpeechSource = DEFAULT,
    *,
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
    `TranscribeOptions`, with openai-whisper's names and defaults. `progress` hears how many seconds
    of how many are done, `heard` each segment as soon as it is written down.
    """
    asked = TranscribeOptions(**options)
    pipeline = as_speech(model)
    if isinstance(audio, list | tuple):
        return [
            transcribe_one(pipeline, one, asked, progress=progress, heard=heard) for one in audio
        ]
    return transcribe_one(pipeline, audio, asked, progress=progress, heard=heard)


def transcribe_one(
    pipeline: SpeechPipeline,
    audio: Audio,
    options: TranscribeOptions,
    *,
    progress: Callable[[float, float], None] | None = None,
    heard: Callable[[Segment], None] | None = None,
    words: WordTimes | None = None,
) -> Transcript:
    """One recording, window by window; `words` gives the words of segments their times."""
    sound = spectrogram(audio, pipeline.bins)
    transcriber = Transcriber(pipeline.listener, sound, options, words)
    for segments in transcriber:
        if heard is not None:
            for segment in segments:
                heard(segment)
        if progress is not None:
            progress(min(transcriber.seek, sound.frames) / 100, sound.frames / 100)
    return transcriber.transcript


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
