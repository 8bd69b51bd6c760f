"""A whole recording, window by window of 30 s.

    transcriber = Transcriber(listener, sound, TranscribeOptions(language="en"))
    for segments in transcriber:                 # of a window, as soon as it is written down
        print(segments, transcriber.seek)        # how far it is, in frames of 10 ms
    transcriber.transcript

The next window begins where the last whole segment ended, and is decoded after the text so far. A
recording is never held: `sound[first:last]` gives the frames that are asked for.

Legend: M mel bins, N frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.speech.fallback import decode_with_fallback, is_silence
from allformer.speech.hallucinations import last_end, skip_hallucinations
from allformer.speech.language import spoken_language
from allformer.speech.listener import Listens
from allformer.speech.options import TranscribeOptions
from allformer.speech.result import Decoded, Segment, Transcript
from allformer.speech.segments import cut
from allformer.speech.window import FRAMES, PER_SECOND, Window


class Sound(Protocol):
    """The log-mel spectrogram of a recording."""

    frames: int  # 10 ms each

    def __getitem__(self, at: slice) -> Tensor:
        """Frames, M N; behind the last one there are 30 s of silence."""


# Gives segments with the times of their words, and their own times refined by those; told the
# window, and when the last word before it ended.
WordTimes = Callable[[list[Segment], Window, float], list[Segment]]


class Transcriber:
    """Writes a recording down; iterate over it for the segments of each window."""

    def __init__(
        self,
        listener: Listens,
        sound: Sound,
        options: TranscribeOptions,
        words: WordTimes | None = None,
    ) -> None:
        self.listener, self.sound, self.words = listener, sound, words
        self.options = replace(options, language=self._language(options))
        self.clips = clips(options.clip_timestamps, sound.frames)
        self.seek = self.clips[0][0] if self.clips else 0
        self.segments: list[Segment] = []
        vocabulary, first = listener.vocabulary, options.initial_prompt
        self.first = [] if first is None else vocabulary.encode(first)
        self.tokens = list(self.first)  # all that was said, after the initial prompt
        self.forgotten = 0  # tokens before this one are no prompt any more
        self.spoken = 0.0  # when the last word ended
        self.generator = torch.Generator(listener.device).manual_seed(options.seed)

    @property
    def transcript(self) -> Transcript:
        """What is written down so far."""
        text = self.listener.vocabulary.decode(self.tokens[len(self.first) :])
        assert self.options.language is not None
        duration = self.sound.frames / PER_SECOND
        return Transcript(text, tuple(self.segments), self.options.language, duration)

    def __iter__(self) -> Iterator[tuple[Segment, ...]]:
        for start, end in self.clips:
            self.seek = start
            while self.seek < end:
                before = self.seek
                yield self._next(min(FRAMES, end - self.seek))
                if self.seek <= before:  # a word at its very start: go on, or nothing would end
                    self.seek = before + FRAMES

    def _language(self, options: TranscribeOptions) -> str:
        """The language asked for, else that of the first 30 s."""
        return spoken_language(
            self.listener,
            options.language,
            lambda: self.listener.encode(self.sound[0:FRAMES][None]),
        )

    def _next(self, size: int) -> tuple[Segment, ...]:
        """The segments of the window at `seek`, which moves on."""
        mel = F.pad(self.sound[self.seek : self.seek + size], (0, FRAMES - size))
        window = Window(self.listener.encode(mel[None]), self.seek, size)
        decoded = decode_with_fallback(
            self.listener, window.memory, self.options, self._prompt(), self.generator
        )
        if is_silence(decoded, self.options):
            self.seek += size
            return ()
        found = cut(decoded, self.listener.vocabulary, window.seek, size)
        self.seek += found.moved
        segments = found.segments
        if self.words is not None:
            timed = self._timed(segments, window, found.whole)
            if timed is None:
                return ()
            segments = timed
        return self._keep(segments, decoded)

    def _prompt(self) -> list[int]:
        """What the next window is told that was said before it."""
        if not self.options.carry_initial_prompt:
            return self.tokens[self.forgotten :]
        room = self.listener.places // 2 - 1 - len(self.first)
        later = self.tokens[max(len(self.first), self.forgotten) :]
        return self.first + (later[-room:] if room > 0 else [])

    def _timed(self, segments: list[Segment], window: Window, whole: bool) -> list[Segment] | None:
        """With times of words, which tell better where to go on; None: the window is read again
        from later on."""
        assert self.words is not None
        segments = self.words(segments, window, self.spoken)
        end = last_end(segments)
        if not whole and end is not None and end > window.start:
            self.seek = round(end * PER_SECOND)
        threshold = self.options.hallucination_silence_threshold
        if threshold is not None:
            kept = skip_hallucinations(
                segments, window, threshold, self.spoken, self.sound.frames, self.seek, whole
            )
            self.seek = kept.seek
            if kept.segments is None:
                return None
            segments = kept.segments
        end = last_end(segments)
        self.spoken = self.spoken if end is None else end
        return segments

    def _keep(self, segments: list[Segment], decoded: Decoded) -> tuple[Segment, ...]:
        """Number them, and remember what was said; one that is empty says nothing."""
        new = []
        for number, segment in enumerate(segments, start=len(self.segments)):
            if segment.start == segment.end or not segment.text.strip():
                segment = replace(segment, text="", tokens=(), words=())
            new.append(replace(segment, id=number))
            self.tokens += segment.tokens
        self.segments += new
        if not self.options.condition_on_previous_text or decoded.temperature > 0.5:
            self.forgotten = len(self.tokens)  # what was drawn so boldly is no good example
        return tuple(new)


def clips(seconds: tuple[float, ...], frames: int) -> list[tuple[int, int]]:
    """From start, end, start, … in seconds, frames within a recording: `clips((5.0,), 1000)`."""
    points = [round(second * PER_SECOND) for second in seconds] or [0]
    if len(points) % 2:
        points.append(frames)
    both = zip(points[::2], points[1::2], strict=True)
    inside = ((start, min(end, frames)) for start, end in both)
    return [(start, end) for start, end in inside if start < end]
