"""Local agreement: of two readings of a growing recording, what both begin with is settled.

    agreement = Agreement()
    agreement.hear(words)       # a reading of what is in sight: the words that are settled now
    agreement.pending           # what may still change
    agreement.settle()          # the recording is over: those too

A recogniser that has heard more may change its mind, most often about the last words. What two
readings one after the other agree upon stays (LocalAgreement-2: Liu et al., 2020; for Whisper:
Macháček et al., 2023), and is never taken back.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from allformer.speech.word_times import Timing

_SLACK = 0.1  # seconds: times of the same word differ between readings
_NEAR = 1.0  # seconds after what is settled within which a word may be one of those again
_AGAIN = 5  # words that may be heard again


class Agreement:
    """What is settled of a speech, and what is not yet."""

    def __init__(self) -> None:
        self.end = 0.0  # seconds; until here everything is settled
        self.pending: list[Timing] = []
        self._last: list[str] = []  # the last words that were settled

    def hear(self, words: Sequence[Timing]) -> list[Timing]:
        """A reading of the sound, its words with their times: those that are settled by it."""
        new = self._unsettled([one for one in words if one.word.strip()])
        agreed = 0
        for old, one in zip(self.pending, new, strict=False):
            if not same_word(old.word, one.word):
                break
            agreed += 1
        self.pending = new
        return self.settle(agreed)

    def settle(self, count: int | None = None) -> list[Timing]:
        """The first `count` of what is pending (all) will not change any more."""
        count = len(self.pending) if count is None else count
        settled, self.pending = self.pending[:count], self.pending[count:]
        if settled:
            self.end = max(self.end, settled[-1].end)
            self._last = [*self._last, *(one.word for one in settled)][-_AGAIN:]
        return settled

    def settle_until(self, second: float) -> list[Timing]:
        """What is pending and begins before `second`: the sound up to there is about to leave."""
        return self.settle(sum(one.start < second for one in self.pending))

    def _unsettled(self, words: Sequence[Timing]) -> list[Timing]:
        """What comes after the settled words; the last of them may be heard once more, later than
        before. A word that is really said twice is told from such a one by those in front of it."""
        first = sum(one.start <= self.end - _SLACK for one in words)
        best = longest = 0
        for again in range(min(_AGAIN, len(words) - first) + 1):
            if again and words[first + again - 1].start > self.end + _NEAR:
                break
            agreed = _common_end(self._last, [one.word for one in words[: first + again]])
            if agreed > longest:
                best, longest = again, agreed
        return list(words[first + best :])


def _common_end(some: Sequence[str], others: Sequence[str]) -> int:
    """How many words at their ends are the same."""
    count = 0
    for one, other in zip(reversed(some), reversed(others), strict=False):
        if not same_word(one, other):
            break
        count += 1
    return count


def same_word(one: str, other: str) -> bool:
    """Whether two readings mean the same word: signs and capital letters do not count.

    >>> same_word(" Wood,", " wood")
    True
    """
    return _bare(one) == _bare(other)


def _bare(word: str) -> str:
    letters = "".join(c for c in word if unicodedata.category(c)[0] not in "PZ")
    return letters.casefold() or word.strip()


def later(words: Sequence[Timing], seconds: float) -> list[Timing]:
    """The same words, so much later."""
    return [replace(one, start=one.start + seconds, end=one.end + seconds) for one in words]
