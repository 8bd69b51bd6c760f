"""`transcribe_live`: speech while it is being said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from allformer.sound.voice import voices
from allformer.speech.options import TranscribeOptions
from allformer.speech.reader import WindowReader
from allformer.speech.streaming import Stream, Update
from allformer.tasks.speech_pipeline import DEFAULT, SpeechSource, as_speech


def transcribe_live(
    pieces: Iterable[Tensor],
    model: SpeechSource = DEFAULT,
    *,
    every: float = 1.0,
    longest: float = 15.0,
    pause: float = 1.0,
    **options: Any,
) -> Iterator[Update]:
    """What is said in sound that comes in pieces, as it comes.

    >>> from allformer.speech.pieces import from_microphone
    >>> for update in transcribe_live(from_microphone(), language="en"):
    ...     print(update.text, update.guess)

    `pieces` are samples at 16 kHz, of any length; `speech.pieces` makes them of a pipe of raw
    samples or a microphone. Each update has the words that are `settled` since the last one, which
    never change, and those that are `pending`. The sound is read again `every` so many seconds, at
    most about `longest` seconds of it, and a `pause` settles everything. `options` are those of
    `TranscribeOptions` that concern one window.
    """
    asked = TranscribeOptions(**options)
    pipeline = as_speech(model)
    reader = WindowReader(pipeline.listener, pipeline.bins, asked)
    stream = Stream(
        reader, voices, every=every, longest=longest, pause=pause,
        before=asked.initial_prompt or "",
    )  # fmt: skip
    return _updates(stream, pieces)


def _updates(stream: Stream, pieces: Iterable[Tensor]) -> Iterator[Update]:
    for piece in pieces:
        update = stream.feed(piece)
        if update is not None:
            yield update
    yield stream.finish()
