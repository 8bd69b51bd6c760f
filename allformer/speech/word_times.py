"""From the scores of cross-attention to the time of each word.

    begins = token_times(scores, first=2)        # seconds at which each token begins
    timings = time_words(words, begins, probabilities)
    join_punctuation(timings)

Attention over the sound is turned into one picture of tokens × frames: softmax over the frames,
each frame's weights brought to mean 0 and deviation 1 over the tokens (so that frames at which
everybody looks say nothing), smoothed over time, averaged over the heads. The cheapest path
through it says when each token was spoken. The rules, and their constants, are openai-whisper's.

Legend: H heads, T tokens, F frames of the encoder (20 ms each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from allformer.speech.dtw import median_filter, warp
from allformer.speech.split import Spelt

FRAMES_PER_SECOND = 50  # that the encoder gives
SMOOTHED = 7  # frames of the median filter
OPENING = "\"'“¿([{-"  # belongs to the word after it
CLOSING = "\"'.。,，!！?？:：”)]}、"  # to the word before it
SENTENCE_ENDS = ".。!！?？"
_LONGEST = 0.7  # seconds: a usual word is not longer
_BEYOND = 0.5  # seconds by which a word may reach beyond its segment


@dataclass
class Timing:
    """A word, its tokens, and when it is said, in seconds."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float

    @property
    def length(self) -> float:
        """Seconds that it takes."""
        return self.end - self.start


def token_times(scores: Tensor, first: int, smoothed: int = SMOOTHED) -> np.ndarray:
    """When each token from the `first` on begins, in seconds, of `scores` H T F before softmax.

    What is looked at while a token is read says when the next one is spoken, so the token at
    `first` stands for the first of the text, and the last of the text for its end: the times of n
    tokens and of the end come out, n + 1.
    """
    weights = scores.float().softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = median_filter((weights - mean) / deviation, smoothed)
    picture = weights.mean(dim=0)[first:-1]
    rows, columns = warp(-picture.cpu().numpy())
    begins = np.diff(rows, prepend=-1).astype(bool)
    times: np.ndarray = columns[begins] / FRAMES_PER_SECOND
    return times


def time_words(
    words: Sequence[Spelt], begins: np.ndarray, probabilities: Sequence[float]
) -> list[Timing]:
    """Words with the times of their tokens; a word ends where the next one begins.

    The last of `words` is the end of the text: it has no time of its own, but says when the last
    word is over.
    """
    out: list[Timing] = []
    at = 0
    for text, tokens in words[:-1]:
        after = at + len(tokens)
        probability = float(np.mean(probabilities[at:after]))
        out.append(Timing(text, list(tokens), float(begins[at]), float(begins[after]), probability))
        at = after
    return out


def usual_length(timings: Sequence[Timing]) -> float:
    """The median of the words' lengths, at most 0.7 s; 0 where there are none."""
    lengths = [one.length for one in timings if one.length != 0]
    return min(_LONGEST, float(np.median(lengths))) if lengths else 0.0


def shorten_at_sentences(timings: Sequence[Timing], usual: float) -> None:
    """A pause between sentences belongs to no word: at most twice the usual length there."""
    longest = 2 * usual
    if longest == 0:
        return
    for before, one in pairwise(timings):
        if one.length <= longest:
            continue
        if one.word in SENTENCE_ENDS:
            one.end = one.start + longest
        elif before.word in SENTENCE_ENDS:
            one.start = one.end - longest


def join_punctuation(timings: list[Timing], opening: str = OPENING, closing: str = CLOSING) -> None:
    """Signs join their words in place; what joined is left empty, so that tokens stay in order."""
    after = len(timings) - 1
    for i in range(len(timings) - 2, -1, -1):
        one, next_one = timings[i], timings[after]
        if one.word.startswith(" ") and one.word.strip() in opening:
            _move(one, next_one, in_front=True)
        else:
            after = i
    before = 0
    for i in range(1, len(timings)):
        last, one = timings[before], timings[i]
        if not last.word.endswith(" ") and one.word in closing:
            _move(one, last, in_front=False)
        else:
            before = i


def _move(one: Timing, other: Timing, in_front: bool) -> None:
    """Text and tokens go over; the other's times stay, as in the reference."""
    first, second = (one, other) if in_front else (other, one)
    other.word, other.tokens = first.word + second.word, first.tokens + second.tokens
    one.word, one.tokens = "", []


def fit_segment(
    words: Sequence[Timing], start: float, end: float, last: float, usual: float
) -> tuple[float, float]:
    """Where a segment with these words starts and ends; words that are too long are cut in place.

    `last` is the end of the word before. Where the first or last word reaches far beyond the
    segment, the segment's time is right, else the word's.
    """
    if not words:
        return start, end
    _shorten_after_pause(words, last, usual)
    first, final = words[0], words[-1]
    if start < first.end and start - _BEYOND > first.start:
        first.start = max(0.0, min(first.end - usual, start))
    else:
        start = first.start
    if end > final.start and end + _BEYOND < final.end:
        final.end = max(final.start + usual, end)
    else:
        end = final.end
    return start, end


def _shorten_after_pause(words: Sequence[Timing], last: float, usual: float) -> None:
    """The first two words after a pause are no longer than twice the usual length."""
    longest = 2 * usual
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - last <= 4 * usual:
        return
    if first.length <= longest and (second is None or second.end - first.start <= 2 * longest):
        return
    if second is not None and second.length > longest:
        first.end = second.start = max(second.end / 2, second.end - longest)
    first.start = max(0.0, first.end - longest)
