"""How fast a model reads and writes.

pace = Pace()
generate(pipeline, "Once upon a time", streamer=stream, pace=pace)
print(pace)     # prompt 5 tokens, 310 tok/s · new 64 tokens, 21.4 tok/s
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from allformer.generate.request import Speculation, Streamer


@dataclass
class Pace:
    """Tokens and seconds of all that was written with it: `generate(…, pace=pace)`.

    When reading ends and writing begins is seen by a streamer alone; without one all the time is
    taken for writing. The first new token of a row comes with the reading.
    """

    prompt: int = 0  # tokens that were read
    kept: int = 0  # of prompts: those that were known from the last call, and not read again
    new: int = 0  # tokens that were written
    first: int = 0  # of them: those that came with the reading
    reading: float = 0.0  # seconds
    writing: float = 0.0
    guesses: Speculation = field(default_factory=Speculation)  # how guessing ahead went

    @property
    def prompt_rate(self) -> float | None:
        """Tokens read in a second; None where nobody saw."""
        return self.prompt / self.reading if self.reading else None

    @property
    def new_rate(self) -> float | None:
        """Tokens written in a second; None where there was but the first."""
        later = self.new - self.first
        return later / self.writing if later and self.writing else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        kept = {"kept_tokens": self.kept} if self.kept else {}
        rates = {
            "prompt_tokens_per_second": _round(self.prompt_rate),
            "new_tokens_per_second": _round(self.new_rate),
        }
        found = {"prompt_tokens": self.prompt, **kept, "new_tokens": self.new, **rates}
        if self.guesses.rounds:
            found |= {"guessed_tokens": self.guesses.proposed}
            found |= {"accepted_tokens": self.guesses.accepted}
        return found

    def __str__(self) -> str:
        kept = f" and {self.kept:,} known" if self.kept else ""
        return (
            f"prompt {_tokens(self.prompt)}{kept}{_rate(self.prompt_rate)} · "
            f"new {_tokens(self.new)}{_rate(self.new_rate)}"
            + (f" · {self.guesses}" if self.guesses.rounds else "")
        )


class Clock:
    """Around one call of `generate`, and around its streamer, to note when the first token came.

    `clock = Clock(stream)`, then `generate(…, streamer=clock.streamer)`, then `clock.stop()`.
    """

    def __init__(self, inner: Streamer | None) -> None:
        self.inner, self.puts = inner, 0
        self.begun = self.first = self.ended = time.perf_counter()

    @property
    def streamer(self) -> Streamer | None:
        """To be given in place of the one inside; where there is none, none."""
        return None if self.inner is None else self

    def put(self, value: Tensor) -> None:
        """The prompt, the first tokens, and all others."""
        assert self.inner is not None
        self.puts += 1
        if self.puts == 2:
            self.first = time.perf_counter()
        self.inner.put(value)

    def end(self) -> None:
        """Nothing more comes."""
        assert self.inner is not None
        self.inner.end()

    def stop(self) -> None:
        """The call is over."""
        self.ended = time.perf_counter()

    def tell(self, pace: Pace, prompt: int, kept: int, new: Sequence[int]) -> None:
        """Add the call to a pace: tokens of all prompts, known ones, new ones of each row."""
        pace.prompt += prompt - kept
        pace.kept += kept
        pace.new += sum(new)
        pace.first += len(new) if self.puts > 1 else 0
        pace.reading += self.first - self.begun
        pace.writing += self.ended - self.first


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f", {rate:,.0f} tok/s" if rate >= 100 else f", {rate:.3g} tok/s"


def _round(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)
