"""Words that nobody may have said, heard in silence: they are unlikely, very short or very long.

The rules and their numbers are openai-whisper's (`hallucination_silence_threshold`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from allformer.speech.result import Segment, Word
from allformer.speech.window import PER_SECOND, Window

_SIGNS = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_FIRST = 8  # words of a segment that are looked at
_UNLIKELY, _SHORT, _LONG = 0.15, 0.133, 2.0


class Kept(NamedTuple):
    """What is left of a window, and where to go on; None: all of it is to be read again."""

    segments: list[Segment] | None
    seek: int


def oddness(word: Word) -> float:
    """0 of a usual word; the odder, the more."""
    length = word.end - word.start
    odd = 1.0 if word.probability < _UNLIKELY else 0.0
    if length < _SHORT:
        odd += (_SHORT - length) * 15
    return odd + max(0.0, length - _LONG)


def is_odd(segment: Segment | None) -> bool:
    """Whether the words of a segment may be nobody's."""
    if segment is None or not segment.said:
        return False
    words = [word for word in segment.said if word.word not in _SIGNS][:_FIRST]
    odd = sum(oddness(word) for word in words)
    return odd >= 3 or odd + 0.01 >= len(words)


def last_end(segments: Sequence[Segment]) -> float | None:
    """When the last word ends; without words, the last segment."""
    ends = (word.end for segment in reversed(segments) for word in reversed(segment.said))
    return next(ends, segments[-1].end if segments else None)


def skip_hallucinations(
    segments: list[Segment],
    window: Window,
    threshold: float,
    spoken: float,
    frames: int,
    seek: int,
    whole: bool,
) -> Kept:
    """Leave out what is odd amid silence of `threshold` seconds, and go on behind the silence.

    `spoken` is when the last word before the window ended, `frames` the recording's length, `seek`
    where to go on as it stands, `whole` whether the window's text ended in a timestamp.
    """
    end = last_end(segments)
    if not whole and end is not None and end > window.start:
        near = window.end - end <= threshold
        seek = window.seek + window.size if near else round(end * PER_SECOND)
    first = _worded(segments)
    if first is not None and is_odd(first):
        gap = first.start - window.start
        if gap > threshold:
            return Kept(None, window.seek + round(gap * PER_SECOND))
    before = spoken
    for number, segment in enumerate(segments):
        if not segment.said:
            continue
        if is_odd(segment) and _alone(segments[number:], window, threshold, before):
            seek = round(max(window.start + 1, segment.start) * PER_SECOND)
            if frames / PER_SECOND - segment.end < threshold:
                seek = frames
            return Kept(segments[:number], seek)
        before = segment.end
    return Kept(segments, seek)


def _alone(segments: list[Segment], window: Window, threshold: float, before: float) -> bool:
    """Whether the first of these has silence, or others as odd, on both sides of it."""
    segment, after = segments[0], _worded(segments[1:])
    follows = window.start + window.size / PER_SECOND
    if after is not None:
        follows = after.said[0].start
    quiet_before = (
        segment.start - before > threshold
        or segment.start < threshold
        or segment.start - window.start < 2.0
    )
    quiet_after = (
        follows - segment.end > threshold or is_odd(after) or window.end - segment.end < 2.0
    )
    return quiet_before and quiet_after


def _worded(segments: Sequence[Segment]) -> Segment | None:
    return next((segment for segment in segments if segment.said), None)
