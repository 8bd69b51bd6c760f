"""Which tokens may come next: suppression lists, and the rules of timestamps.

    rules = Rules.make(vocabulary, options, device)
    trail = Trail.start(rows, vocabulary, device)
    rules(logits, trail)          # −inf where a token is forbidden, in place
    trail.add(tokens)             # what was said instead

The rules are openai-whisper's:

- a text begins with a timestamp, no later than `max_initial_timestamp`, and not with a blank;
- timestamps stand in pairs (the end of a stretch, the start of the next), but for the first and
  the last; they do not go back, and a stretch is not empty;
- where timestamps together are likelier than the likeliest other token, it is one of them.

Everything is a mask on the device; nothing waits for it.

Legend: R rows, V vocabulary, N timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from allformer.speech.options import DecodingOptions
from allformer.speech.vocabulary import Vocabulary
from allformer.speech.window import STEP

NEVER = float("-inf")


@dataclass
class Trail:
    """What the rules must know of what was said, for each row: R each."""

    vocabulary: Vocabulary
    stamped: Tensor  # the last token was a timestamp
    before: Tensor  # and so was the one before it, or there was none
    last: Tensor  # the last timestamp; one less than the first, where none was said
    count: int = 0  # tokens said

    @classmethod
    def start(cls, rows: int, vocabulary: Vocabulary, device: torch.device | str) -> Trail:
        """Before anything is said."""
        no = torch.zeros(rows, dtype=torch.bool, device=device)
        last = torch.full((rows,), vocabulary.first_time - 1, device=device)
        return cls(vocabulary, no, ~no, last)

    def add(self, tokens: Tensor) -> None:
        """What each row said, R."""
        if self.count:
            self.before = self.stamped
        self.stamped = tokens >= self.vocabulary.first_time
        self.last = torch.where(self.stamped, tokens, self.last)
        self.count += 1

    def select(self, rows: Tensor) -> None:
        """Rows move, or multiply."""
        self.stamped, self.before = self.stamped[rows], self.before[rows]
        self.last = self.last[rows]


@dataclass(frozen=True)
class Rules:
    """Made once for a window; `never` and `blank` are ids on the device."""

    vocabulary: Vocabulary
    never: Tensor
    blank: Tensor
    columns: Tensor  # N: the ids of timestamps
    timed: bool
    latest: int | None  # the last timestamp that a text may begin with

    @classmethod
    def make(
        cls, vocabulary: Vocabulary, options: DecodingOptions, device: torch.device | str
    ) -> Rules:
        """For these options."""
        timed = not options.without_timestamps
        never = vocabulary.forbidden(options.suppress_tokens)
        if timed:
            never = (*never, vocabulary.untimed)
        blank = vocabulary.blank if options.suppress_blank else ()
        latest = None
        if options.max_initial_timestamp:
            latest = vocabulary.first_time + round(options.max_initial_timestamp / STEP)
        ids = (torch.tensor(x, dtype=torch.long, device=device) for x in (never, blank))
        columns = torch.arange(vocabulary.first_time, vocabulary.size, device=device)
        return cls(vocabulary, next(ids), next(ids), columns, timed, latest)

    def __call__(self, logits: Tensor, trail: Trail) -> Tensor:
        """Forbid, in place: logits R V, of tokens after those of the trail."""
        if len(self.never):
            logits.index_fill_(1, self.never, NEVER)
        if trail.count == 0 and len(self.blank):
            logits.index_fill_(1, self.blank, NEVER)
        if self.timed:
            self._times(logits, trail)
        return logits

    def _times(self, logits: Tensor, trail: Trail) -> None:
        first = self.vocabulary.first_time
        words, times = logits[:, :first], logits[:, first:]
        if trail.count == 0:
            words.fill_(NEVER)
            if self.latest is not None:
                logits[:, self.latest + 1 :] = NEVER
            return
        ends = trail.stamped & ~trail.before  # a stretch has just ended: the next one, or the end
        words[:, : self.vocabulary.end].masked_fill_(ends[:, None], NEVER)
        # After a pair come words; else a time after the last, or the same one to begin the next.
        least = trail.last + 1 - ends.long()
        least = least.masked_fill(trail.stamped & trail.before, self.vocabulary.size)
        times.masked_fill_(self.columns < least[:, None], NEVER)
        likelier = times.float().logsumexp(-1) > words.float().amax(-1)
        words.masked_fill_(likelier[:, None], NEVER)
