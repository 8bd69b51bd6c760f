"""A window's tokens into segments, by their timestamps.

    <|0.00|> He was not.<|2.40|><|2.40|> Unless …<|7.00|><|7.00|> to be

Two timestamps side by side end a segment and begin the next. What comes after the last such pair is
not whole: the next window begins there, and hears it again. One timestamp alone at the end says
that nothing is left.
"""

from __future__ import annotations

from typing import NamedTuple

from allformer.speech.result import Decoded, Segment
from allformer.speech.vocabulary import Vocabulary
from allformer.speech.window import PER_SECOND, STEP, STRIDE


class Cut(NamedTuple):
    """Segments of a window, how many frames to go on by, and whether the window was `whole`: its
    text ended with one timestamp."""

    segments: list[Segment]
    moved: int
    whole: bool


def cut(decoded: Decoded, vocabulary: Vocabulary, seek: int, size: int) -> Cut:
    """The segments of `size` frames from `seek` on."""
    tokens, first, offset = decoded.tokens, vocabulary.first_time, seek / PER_SECOND
    times = [token >= first for token in tokens]
    whole = times[-2:] == [False, True]
    pairs = [i + 1 for i in range(len(tokens) - 1) if times[i] and times[i + 1]]
    if not pairs:
        stamps = [token for token in tokens if token >= first]
        length = size / PER_SECOND
        if stamps and stamps[-1] != first:
            length = (stamps[-1] - first) * STEP
        lone = _segment(decoded, vocabulary, seek, offset, offset + length, tokens)
        return Cut([lone], size, whole)
    ends = [*pairs, len(tokens)] if whole else pairs
    segments = []
    for begin, end in zip([0, *ends], ends, strict=False):
        part = tokens[begin:end]
        start, stop = (offset + (token - first) * STEP for token in (part[0], part[-1]))
        segments.append(_segment(decoded, vocabulary, seek, start, stop, part))
    moved = size if whole else (tokens[pairs[-1] - 1] - first) * STRIDE
    return Cut(segments, moved, whole)


def _segment(
    decoded: Decoded,
    vocabulary: Vocabulary,
    seek: int,
    start: float,
    end: float,
    tokens: tuple[int, ...],
) -> Segment:
    return Segment(
        id=0,
        seek=seek,
        start=start,
        end=end,
        text=vocabulary.decode(token for token in tokens if token < vocabulary.end),
        tokens=tokens,
        temperature=decoded.temperature,
        avg_logprob=decoded.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
    )
