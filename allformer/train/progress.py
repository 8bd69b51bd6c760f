"""What a person sees while training: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple


def clock(seconds: float) -> str:
    """`clock(3725)` → 1:02:05"""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Lap(NamedTuple):
    """Since the last one: tokens a second, seconds of training, the share of them that was spent
    waiting for data, and how many more seconds the run will take."""

    speed: float
    seconds: float
    wait: float
    left: float = 0.0


class Clock:
    """Seconds of a run (over its resumes) and tokens a second, validation and saving left out."""

    def __init__(self, before: float = 0.0) -> None:
        self.begin = self.lap_begin = time.monotonic()
        self.before, self.tokens, self.lap_tokens, self.steps = before, 0, 0, 0
        self.out, self.lap_out = 0.0, 0.0  # seconds that do not count as training speed
        self.lap_wait = 0.0

    def count(self, tokens: int) -> float:
        """Tokens of one more step; returns the run's seconds so far."""
        self.steps += 1
        self.tokens += tokens
        self.lap_tokens += tokens
        return self.before + time.monotonic() - self.begin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside counts for the run, not for its speed."""
        begin = time.monotonic()
        yield
        self.out += time.monotonic() - begin
        self.lap_out += time.monotonic() - begin

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent inside is a wait for data."""
        begin = time.monotonic()
        yield
        self.lap_wait += time.monotonic() - begin

    def speed(self) -> float:
        """Tokens a second since the beginning."""
        return self.tokens / max(1e-9, time.monotonic() - self.begin - self.out)

    def lap(self, steps_left: int = 0) -> Lap:
        """The figures since the last lap; what is left takes as long as what was, all included."""
        now = time.monotonic()
        seconds = max(1e-9, now - self.lap_begin - self.lap_out)
        left = (now - self.begin) / max(1, self.steps) * steps_left
        lap = Lap(self.lap_tokens / seconds, seconds, self.lap_wait / seconds, left)
        self.lap_begin, self.lap_tokens, self.lap_out, self.lap_wait = now, 0, 0.0, 0.0
        return lap


class Asides:
    """`aside("validating", done, total)`: how far something is that takes long, in a line from time
    to time; none where it is quick. Whoever begins anew begins at 0."""

    def __init__(self, say: Callable[[str], None], every: float = 10.0) -> None:
        self.say, self.every = say, every
        self.what, self.done, self.last = "", 0, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self.what or done <= self.done:
            self.last = now
        elif done < total and now - self.last >= self.every:
            self.last = now
            self.say(f"{what}: {done / total:.0%}")
        self.what, self.done = what, done


class Progress:
    """`progress.update(step, nll=…, rate=…)` as often as there is news; `say` for whole lines, and
    `aside("validating", done, total)` for what is done between two steps."""

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        plain_every: float = 10.0,
        what: str = "training",
        unit: str = "step",
    ) -> None:
        self.total, self.first, self.plain_every, self.unit = total, done, plain_every, unit
        self.what = what
        self.begin = self.last = time.monotonic()
        self._lines = Asides(self.say, plain_every)
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            self._bar = _rich_bar()
            self._task = self._bar.add_task(what, total=total, completed=done, news="")
            self._bar.start()

    def start(self) -> None:
        """Steps begin: what was done before them says nothing of the time that is left."""
        self.begin = self.last = time.monotonic()

    def update(self, step: int, **figures: str) -> None:
        """Show the step, the figures and the time that is left."""
        now = time.monotonic()
        news = "  ".join(f"{name} {value}" for name, value in figures.items())
        if self._bar is not None:
            width = self._bar.console.width
            taken = len(self.what) + 2 * len(str(self.total)) + _beside(width)
            news = fitting(figures, width - taken)
            self._bar.update(self._task, completed=step, news=news)
        elif now - self.last >= self.plain_every or step == self.total:
            self.last = now
            left = (now - self.begin) / max(1, step - self.first) * (self.total - step)
            self.say(
                "  ".join(
                    filter(
                        None, [f"{self.unit} {step:,}/{self.total:,}", news, f"left {clock(left)}"]
                    )
                )
            )

    def aside(self, what: str, done: int, total: int) -> None:
        """How far something is that steps wait for."""
        if self._bar is None:
            self._lines(what, done, total)
        else:
            self._bar.update(self._task, news=f"{what} {done / max(1, total):.0%}")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def fitting(figures: Mapping[str, str], room: int) -> str:
    """As many of the figures as there is room for, the first ones first."""
    news = ""
    for name, value in figures.items():
        more = f"{news}  {name} {value}".lstrip()
        if len(more) > room:
            break
        news = more
    return news


_NARROW = 60  # columns, below which there is neither a bar nor the time that has gone


def _bar_width(width: int) -> int:
    return 24 if width >= 130 else 8


def _beside(width: int) -> int:
    """Columns that stand beside what is done, the counts and the figures, with the spaces."""
    left = 1 + 1 + 1 + 5 + 7  # the slash of the counts, two spaces, `left`, the time
    return left if width < _NARROW else left + _bar_width(width) + 1 + 8


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    narrow = console.width < _NARROW
    return Bar(
        TextColumn("{task.description}", markup=False),  # a file's name may have brackets
        *(() if narrow else (BarColumn(bar_width=_bar_width(console.width)),)),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}", markup=False),
        *(() if narrow else (TimeElapsedColumn(),)),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
