"""A long recording in batches: cut where nobody speaks, many windows side by side.

    spans = voices("hours.flac", longest=30.0)
    transcriber = Batched(listener, sound, spans, TranscribeOptions(language="en"), batch=16)
    for segments in transcriber:               # in order, as soon as all before them are there
        print(segments, transcriber.seek)
    transcriber.transcript

Windows know nothing of each other, so no text goes on as a prompt (`condition_on_previous_text` has
no meaning here). What a window leaves unread, for its text ended before it did, is one more window.
Memory is bounded by the batch: of the recording only the frames of a batch are held.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import ConfigError
from allformer.speech.align import WordTimer
from allformer.speech.decoding import decode
from allformer.speech.fallback import is_bad, is_silence
from allformer.speech.hallucinations import last_end
from allformer.speech.language import spoken_language
from allformer.speech.listener import Listener
from allformer.speech.options import TranscribeOptions
from allformer.speech.result import Decoded, Segment, Transcript
from allformer.speech.segments import Cut, cut
from allformer.speech.window import FRAMES, PER_SECOND
from allformer.speech.windows import Sound, clips

_LEAST = 20  # frames: what is shorter holds no word
_BACK = 60  # frames before a timestamp in which the pause may be that it means

Frames = tuple[int, int]  # first … last


class Batched:
    """Writes a recording down by its `spans` of speech, in seconds, none longer than 30.

    `words`: segments come with their words and when those are said.
    """

    def __init__(
        self,
        listener: Listener,
        sound: Sound,
        spans: Sequence[tuple[float, float]],
        options: TranscribeOptions,
        *,
        words: bool = False,
        batch: int = 8,
    ) -> None:
        if batch < 1:
            raise ConfigError(f"batch={batch} must be at least 1; 8 is usual")
        if options.hallucination_silence_threshold is not None:
            raise ConfigError(
                f"hallucination_silence_threshold={options.hallucination_silence_threshold} is for "
                f"windows one after the other; leave it out, as silence is cut away, or leave out "
                f"batch"
            )
        self.listener, self.sound, self.batch = listener, sound, batch
        self.waiting = within(spans, clips(options.clip_timestamps, sound.frames))
        heapq.heapify(self.waiting)
        self.options = replace(options, language=self._language(options))
        self.timer = self._timer(words)
        self.segments: list[Segment] = []
        self.seek = 0
        self.spoken = 0.0  # when the last word ended
        prompt = options.initial_prompt
        self.prompt = () if prompt is None else tuple(listener.vocabulary.encode(prompt))
        self.generator = torch.Generator(listener.device).manual_seed(options.seed)

    @property
    def transcript(self) -> Transcript:
        """What is written down so far."""
        text = "".join(segment.text for segment in self.segments)
        assert self.options.language is not None
        duration = self.sound.frames / PER_SECOND
        return Transcript(text, tuple(self.segments), self.options.language, duration)

    def __iter__(self) -> Iterator[tuple[Segment, ...]]:
        ready: list[tuple[int, list[Segment]]] = []  # by the frame at which their window began
        while self.waiting:
            count = min(self.batch, len(self.waiting))
            ready += self._next([heapq.heappop(self.waiting) for _ in range(count)])
            self.seek = self.waiting[0][0] if self.waiting else self.sound.frames
            ready.sort(key=lambda one: one[0])
            out: list[Segment] = []
            while ready and ready[0][0] < self.seek:
                out += ready.pop(0)[1]
            yield self._keep(out)

    def _language(self, options: TranscribeOptions) -> str:
        """The language asked for, else that of the first speech."""
        first = self.waiting[:1] or [(0, FRAMES)]
        return spoken_language(self.listener, options.language, lambda: self._encode(first))

    def _timer(self, words: bool) -> WordTimer | None:
        if not words:
            return None
        return WordTimer(self.listener, self.options.language, self.options.task)

    def _encode(self, windows: Sequence[Frames]) -> Tensor:
        """What the encoder makes of them, A S dim."""
        mels = [self.sound[first:last] for first, last in windows]
        return self.listener.encode(torch.stack([F.pad(x, (0, FRAMES - x.shape[1])) for x in mels]))

    def _next(self, windows: list[Frames]) -> list[tuple[int, list[Segment]]]:
        """The segments of each window, with the frame at which it began; the rest waits again."""
        memory = self._encode(windows)
        decoded = self._decode(memory)
        loud = [i for i, one in enumerate(decoded) if not is_silence(one, self.options)]
        found = [self._cut(decoded[i], windows[i]) for i in loud]
        segments = [one.segments for one in found]
        if self.timer is not None and loud:
            sizes = [windows[i][1] - windows[i][0] for i in loud]
            segments = self._timed(self.timer, segments, memory[loud], sizes)
        for i, one, mine in zip(loud, found, segments, strict=True):
            self._rest(windows[i], one.moved, mine)
        return [(windows[i][0], mine) for i, mine in zip(loud, segments, strict=True)]

    def _cut(self, decoded: Decoded, window: Frames) -> Cut:
        """The segments of a window. Text behind the last pair of timestamps is one too: a window
        ends where nobody speaks, so it is whole, unless the decoder had no room for more."""
        (first, last), vocabulary = window, self.listener.vocabulary
        found = cut(decoded, vocabulary, first, last - first)
        tail = decoded.tokens[sum(len(one.tokens) for one in found.segments) :]
        room = self.options.sample_len or self.listener.places // 2
        if len(decoded.tokens) >= room or not any(token < vocabulary.end for token in tail):
            return found
        text = vocabulary.decode(token for token in tail if token < vocabulary.end)
        start, end = (first + found.moved) / PER_SECOND, last / PER_SECOND
        whole = replace(found.segments[-1], start=start, end=end, text=text, tokens=tail)
        return Cut([*found.segments, whole], last - first, True)

    def _rest(self, window: Frames, moved: int, segments: list[Segment]) -> None:
        """What the text of a window did not reach waits as a window of its own."""
        first, last = window
        end = first + moved
        if not moved or last - end < _LEAST:
            return
        spoken = last_end(segments) if self.timer is not None else None
        if spoken is not None and spoken * PER_SECOND > first:
            end = round(spoken * PER_SECOND)
        elif moved > 2 * _BACK:
            end = self._quiet(end - _BACK, end)
            final = segments[-1]
            segments[-1] = replace(final, end=max(final.start, min(final.end, end / PER_SECOND)))
        heapq.heappush(self.waiting, (end, last))

    def _quiet(self, first: int, last: int) -> int:
        """The quietest frame, `last` too: a timestamp may come after the next word has begun."""
        loudness = self.sound[first : last + 1].mean(0)[None]
        around = F.avg_pool1d(loudness, 9, 1, 4, count_include_pad=False)[0]
        return first + int(around.argmin())

    def _decode(self, memory: Tensor) -> list[Decoded]:
        """Each window at the first temperature at which it comes out well, or the last."""
        out: dict[int, Decoded] = {}
        bad = list(range(len(memory)))
        for temperature in self.options.temperatures:
            options = self.options.at(temperature, self.prompt)
            texts = decode(self.listener, memory[bad], options, self.generator)
            out |= dict(zip(bad, texts, strict=True))
            bad = [i for i in bad if is_bad(out[i], self.options)]
            if not bad:
                break
        return [out[i] for i in range(len(memory))]

    def _timed(
        self, timer: WordTimer, segments: list[list[Segment]], memory: Tensor, sizes: list[int]
    ) -> list[list[Segment]]:
        end = self.listener.vocabulary.end
        texts = [[t for one in mine for t in one.tokens if t < end] for mine in segments]
        out = []
        for mine, timings in zip(segments, timer.align(texts, memory, sizes), strict=True):
            out.append(timer.share(mine, timings, self.spoken))
            last = last_end(out[-1])
            self.spoken = self.spoken if last is None else last
        return out

    def _keep(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Number them; one that is empty says nothing."""
        said = [one for one in segments if one.start < one.end and one.text.strip()]
        new = [replace(one, id=i) for i, one in enumerate(said, start=len(self.segments))]
        self.segments += new
        return tuple(new)


def within(spans: Sequence[tuple[float, float]], inside: Sequence[Frames]) -> list[Frames]:
    """The frames of `spans` (seconds) that lie `inside`, in windows of 30 s at most.

    >>> within([(0.5, 4.0), (9.0, 12.0)], [(100, 1000)])
    [(100, 400), (900, 1000)]
    """
    out = []
    for start, end in spans:
        for low, high in inside:
            first, last = max(low, round(start * PER_SECOND)), min(high, round(end * PER_SECOND))
            while last - first >= _LEAST:
                out.append((first, min(last, first + FRAMES)))
                first += FRAMES
    return out
