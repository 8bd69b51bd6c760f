"""`continue_sound`: sound that goes on from a recording, or from nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.audiolm.generate import AudioLM, open_audiolm
from allformer.errors import ConfigError, DataError
from allformer.sound import read, write

Prompt = str | Path | Tensor
LONGEST = 600.0  # seconds that are said in one call


@dataclass(frozen=True, eq=False)
class Continuation:
    """A prompt and what follows it, as the codec says them both: samples in −1 … 1."""

    wave: Tensor = field(repr=False)  # S
    rate: int
    begin: int  # the first sample that is new

    @property
    def new(self) -> Tensor:
        """What was said, without the prompt."""
        return self.wave[self.begin :]

    def save(self, path: str | Path) -> None:
        """As a file of the kind that its ending says: `found.save("out.wav")`."""
        write(path, self.wave, self.rate)


def continue_sound(
    kit: AudioLM | str | Path,
    prompt: Prompt | Sequence[Prompt] | None = None,
    *,
    seconds: float = 5.0,
    rate: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Any:
    """Go on with a recording for so many seconds; with several, a list of continuations.

    >>> continue_sound("runs/digits", "prompt.wav", seconds=5).save("out.wav")

    The kit is a folder with the runs of the stages (objective=sound-tokens), or what
    `open_audiolm` opened. A prompt is a file, or samples at `rate`; without one the sound begins
    by itself. `temperature` is for all stages; unless told, 0.6, 0.8 and 0.6. The same `seed` gives
    the same sound. `progress` hears how many seconds there are.
    """
    _check(seconds, temperature, top_k)
    several = prompt is not None and not isinstance(prompt, str | Path | Tensor)
    given: list[Any] = [prompt] if not several else list(prompt)  # type: ignore[arg-type]
    if not given:
        raise ConfigError("there is no prompt in the list; give one, or None to begin by itself")
    kit = kit if isinstance(kit, AudioLM) else open_audiolm(kit)
    waves = [_samples(one, rate, kit.ears.rate) for one in given]
    found = kit.go_on(
        waves, kit.ears.rate, seconds=seconds, temperature=temperature, top_k=top_k, seed=seed,
        progress=progress,
    )  # fmt: skip
    made = [Continuation(wave, kit.rate, begin) for wave, begin in found]
    return made if several else made[0]


def _samples(prompt: Prompt | None, rate: int | None, wanted: int) -> Tensor:
    if prompt is None:
        return torch.zeros(0)
    if isinstance(prompt, str | Path):
        if rate is not None:
            raise ConfigError(f"rate={rate}: a file says its own; leave it out")
        return read(prompt, rate=wanted)
    if rate is None:
        raise ConfigError("rate is missing: say how many samples a second the prompt has")
    from allformer.sound.read import from_array

    if prompt.ndim != 1 or not prompt.numel():
        raise DataError(f"prompt={tuple(prompt.shape)} must be samples of one channel")
    return from_array(prompt, rate=rate, to=wanted)


def _check(seconds: float, temperature: float | None, top_k: int | None) -> None:
    """Refuse what cannot be, before anything is opened."""
    if not (math.isfinite(seconds) and 0 < seconds <= LONGEST):
        raise ConfigError(f"seconds={seconds:g} must be above 0, and at most {LONGEST:g}; try 5")
    if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            f"temperature={temperature} must be a number above 0; below 1 is safer, above 1 bolder"
        )
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k={top_k} must be at least 1; leave it out to keep all")
