"""What can be said about a transcription; names and defaults are openai-whisper's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from allformer.errors import ConfigError
from allformer.speech.vocabulary import TASKS

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class DecodingOptions:
    """How one window of 30 s is written down.

    >>> DecodingOptions(language="zh", beam_size=5)

    `language` None: it is listened for. At `temperature` 0 the likeliest token is taken each time,
    or the likeliest of `beam_size` beams, which go on until `patience` · beam_size have ended;
    above 0 tokens are drawn, `best_of` texts side by side. `length_penalty` (0 … 1) is the power of
    a text's length that its score is divided by; None: the length itself. `prompt` is what was said
    before, `prefix` how the text begins (text or tokens). Never said: `suppress_tokens`, of which
    −1 is all signs that nobody speaks. `max_initial_timestamp`: the text begins by then, in s.
    """

    task: str = "transcribe"
    language: str | None = None
    temperature: float = 0.0
    sample_len: int | None = None  # tokens at most; None: half of what the decoder has places for
    best_of: int | None = None
    beam_size: int | None = None
    patience: float | None = None
    length_penalty: float | None = None
    prompt: str | Sequence[int] | None = None
    prefix: str | Sequence[int] | None = None
    suppress_tokens: tuple[int, ...] | None = (-1,)
    suppress_blank: bool = True
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0

    def __post_init__(self) -> None:
        _check_task(self.task)
        _check_search(self)
        if self.temperature == 0 and self.best_of is not None:
            raise ConfigError(
                f"best_of={self.best_of} at temperature=0: all texts would be the same; give "
                f"beam_size, or a temperature above 0"
            )
        if self.temperature > 0 and self.beam_size is not None:
            raise ConfigError(
                f"beam_size={self.beam_size} at temperature={self.temperature}: beams are not "
                f"drawn; give best_of, or temperature=0"
            )

    @property
    def copies(self) -> int:
        """Texts side by side."""
        return self.beam_size or self.best_of or 1


@dataclass(frozen=True)
class TranscribeOptions:
    """How a whole recording is written down, window by window.

    >>> TranscribeOptions(language="en", beam_size=5, temperature=(0.0, 0.5))

    A window that comes out badly is decoded again at the next `temperature`: if its text repeats
    itself (it packs better than `compression_ratio_threshold`) or is unlikely (its mean
    log-probability is below `logprob_threshold`). It is taken for silence if it is unlikely and
    the probability of no speech is above `no_speech_threshold`. None switches a threshold off.
    `clip_timestamps`: start, end, start, end, … in seconds; the last end may be left out.
    `hallucination_silence_threshold`: where words have times, silence of so many seconds around
    words that nobody may have said is skipped. `seed` is for what is drawn.
    """

    task: str = "transcribe"
    language: str | None = None
    temperature: float | tuple[float, ...] = TEMPERATURES
    best_of: int | None = None
    beam_size: int | None = None
    patience: float | None = None
    length_penalty: float | None = None
    sample_len: int | None = None
    suppress_tokens: tuple[int, ...] | None = (-1,)
    suppress_blank: bool = True
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = True
    initial_prompt: str | None = None
    carry_initial_prompt: bool = False
    clip_timestamps: tuple[float, ...] = (0.0,)
    hallucination_silence_threshold: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_task(self.task)
        _check_search(self)
        if not self.temperatures:
            raise ConfigError("temperature=() has none to decode at; give one or more, such as 0.0")
        _check_clips(self.clip_timestamps)
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"):
            bound = getattr(self, name)
            if bound is not None and math.isnan(bound):
                raise ConfigError(f"{name}={bound} bounds nothing; give a number, or leave it out")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """All of them, in order."""
        given = self.temperature
        return (*given,) if isinstance(given, tuple | list) else (given,)

    def at(self, temperature: float, prompt: Sequence[int]) -> DecodingOptions:
        """For one window; beams are for temperature 0, `best_of` is for those above."""
        drawn = temperature > 0
        return DecodingOptions(
            self.task, self.language, temperature, self.sample_len,
            best_of=self.best_of if drawn else None,
            beam_size=None if drawn else self.beam_size,
            patience=None if drawn else self.patience,
            length_penalty=self.length_penalty, prompt=prompt,
            suppress_tokens=self.suppress_tokens, suppress_blank=self.suppress_blank,
            without_timestamps=self.without_timestamps,
            max_initial_timestamp=self.max_initial_timestamp,
        )  # fmt: skip


def _check_task(task: str) -> None:
    if task not in TASKS:
        raise ConfigError(f"task={task!r} is not known; give {' or '.join(TASKS)}")


def _check_clips(points: Sequence[float]) -> None:
    for start, end in zip(points[::2], points[1::2], strict=False):
        if not 0 <= start < end < math.inf:
            raise ConfigError(
                f"clip_timestamps has {start:g},{end:g}; a clip starts at 0 or later, and ends "
                f"after that (the last end may be left out)"
            )
    if len(points) % 2 and not 0 <= points[-1] < math.inf:
        raise ConfigError(
            f"clip_timestamps has {points[-1]:g}; a clip starts at 0 or later: give seconds"
        )


def _check_search(options: DecodingOptions | TranscribeOptions) -> None:
    """What both classes have alike."""
    for name in ("best_of", "beam_size", "sample_len"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count} must be at least 1; leave it out for the usual")
    given = options.temperature
    for heat in given if isinstance(given, tuple | list) else (given,):
        if not (math.isfinite(heat) and heat >= 0):
            raise ConfigError(f"temperature={heat} must be a number of at least 0; 0 is usual")
    if options.patience is not None and options.beam_size is None:
        raise ConfigError(f"patience={options.patience} is for beams; give beam_size too")
    patient = (options.beam_size or 1) * (1.0 if options.patience is None else options.patience)
    if not (math.isfinite(patient) and round(patient) >= 1):
        raise ConfigError(
            f"patience={options.patience} of beam_size={options.beam_size} ends before any text "
            f"has; give 1.0 or more"
        )
    if options.length_penalty is not None and not 0 <= options.length_penalty <= 1:
        raise ConfigError(
            f"length_penalty={options.length_penalty} must be from 0 to 1; None divides by the "
            f"length"
        )
    first = options.max_initial_timestamp
    if first is not None and not 0 <= first <= 30:
        raise ConfigError(f"max_initial_timestamp={first} must be from 0 to 30 seconds; 1 is usual")
