"""Speech while it is being said: sound in small pieces in, words out that stay as they are.

    stream = Stream(read)
    for piece in pieces:                     # 16 kHz samples, of any length
        update = stream.feed(piece)
        if update is not None:
            update.settled, update.pending   # words for good, and words that may change
    stream.finish().settled                  # the rest

What was heard lately is read again and again as it grows, and what two readings agree upon is
settled (`agreement.py`). A pause settles everything. Sound whose words are settled leaves, so that
memory does not grow with the speech; its text goes on as the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allformer.errors import ConfigError
from allformer.sound.mel import RATE
from allformer.speech.agreement import Agreement, later
from allformer.speech.result import Word
from allformer.speech.word_times import SENTENCE_ENDS, Timing

Reader = Callable[[Tensor, str], list[Timing]]  # sound and the text before it → its words
Spans = Sequence[tuple[float, float]]  # seconds, from … to

_WINDOW = 28.0  # seconds: no reading is longer, whatever was settled
_MOST = 5.0  # seconds that are heard at once: a longer piece is cut
_KEPT = 0.5  # seconds of silence that stay in sight, where a word may have begun
_LEAST = 0.1  # seconds: what is shorter holds no word
_PROMPT = 200  # characters of what was said before


@dataclass(frozen=True)
class Update:
    """After so many `seconds`: words that are settled since the last one, and those that wait."""

    settled: tuple[Word, ...]
    pending: tuple[Word, ...]
    seconds: float

    @property
    def text(self) -> str:
        """What is settled, as text."""
        return "".join(word.word for word in self.settled)

    @property
    def guess(self) -> str:
        """What is pending, as text."""
        return "".join(word.word for word in self.pending)


class Stream:
    """One speech. `read` is the recogniser, `voiced` says where in a sound somebody speaks.

    `every` so many seconds of new sound it is read again; at most about `longest` seconds are in
    sight; a silence of `pause` seconds ends what was said. `before`: what might have been said
    already.
    """

    def __init__(
        self,
        read: Reader,
        voiced: Callable[[Tensor], Spans],
        *,
        every: float = 1.0,
        longest: float = 15.0,
        pause: float = 1.0,
        before: str = "",
    ) -> None:
        if not 0 < every <= _MOST:
            raise ConfigError(f"every={every} must be above 0 and at most {_MOST:g} s; 1 is usual")
        if not _MOST <= longest <= _WINDOW - _MOST:
            raise ConfigError(
                f"longest={longest} must be from {_MOST:g} to {_WINDOW - _MOST:g} s; 15 is usual"
            )
        if not pause > 0:
            raise ConfigError(f"pause={pause} must be above 0 s; 1 is usual")
        self.read, self.voiced = read, voiced
        self.every, self.longest, self.pause = every, longest, pause
        self.sound = torch.zeros(0)  # what is in sight
        self.offset = 0.0  # seconds that left it
        self.before = before  # the end of the text that left it
        self.agreement = Agreement()
        self._settled: list[Timing] = []  # words in sight
        self._fresh = 0  # samples that were not read yet

    @property
    def seconds(self) -> float:
        """How much was heard in all."""
        return self.offset + self._length

    @property
    def _length(self) -> float:
        return self.sound.shape[0] / RATE

    def feed(self, piece: Tensor) -> Update | None:
        """Hear S more samples; None: too few for another reading."""
        settled: list[Timing] = []
        read = False
        for part in torch.split(piece, round(_MOST * RATE)):
            self.sound = torch.cat([self.sound, part.to(torch.float32)])
            self._fresh += part.shape[0]
            if self._fresh >= self.every * RATE:
                settled += self._read()
                read = True
        return self._update(settled) if read else None

    def finish(self) -> Update:
        """It is over: a last reading of what was not read yet, and all is settled."""
        settled = self._read() if self._fresh else []
        return self._update([*settled, *self._keep(self.agreement.settle())])

    def _read(self) -> list[Timing]:
        """One reading of what is in sight: the words that it settles."""
        self._fresh = 0
        spans = self.voiced(self.sound) if self._length >= _LEAST else ()
        if not spans:
            settled = self._keep(self.agreement.settle())
            self._forget(self._length - _KEPT)
            return settled
        words = self.read(self.sound, self.before)
        settled = self._keep(self.agreement.hear(later(words, self.offset)))
        if self._length - spans[-1][1] >= self.pause:
            settled += self._keep(self.agreement.settle())
            self._forget(self._length - _KEPT)
        elif self._length > self.longest:
            settled += self._shorten()
        return settled

    def _shorten(self) -> list[Timing]:
        """Let the oldest sound leave: up to the end of a sentence, or of what is settled."""
        sentences = [one.end for one in self._settled if one.word.strip()[-1:] in SENTENCE_ENDS]
        settled: list[Timing] = []
        if sentences:
            cut = sentences[-1]
        elif self._settled:
            cut = self._settled[-1].end
        elif self._length < _WINDOW - _MOST:
            return []  # readings may still come to agree
        else:
            cut = self.seconds - _MOST
            settled = self._keep(self.agreement.settle_until(cut))
        self._forget(cut - self.offset)
        return settled

    def _forget(self, seconds: float) -> None:
        """The first `seconds` in sight leave, with their words."""
        count = min(max(0, round(seconds * RATE)), self.sound.shape[0])
        self.sound = self.sound[count:].clone()
        self.offset += count / RATE
        gone = [one for one in self._settled if one.end <= self.offset]
        self._settled = self._settled[len(gone) :]
        self.before = (self.before + "".join(one.word for one in gone))[-_PROMPT:]

    def _keep(self, words: list[Timing]) -> list[Timing]:
        self._settled += words
        return words

    def _update(self, settled: Iterable[Timing]) -> Update:
        return Update(_words(settled), _words(self.agreement.pending), self.seconds)


def _words(timings: Iterable[Timing]) -> tuple[Word, ...]:
    return tuple(
        Word(one.word, round(one.start, 2), round(one.end, 2), one.probability) for one in timings
    )
