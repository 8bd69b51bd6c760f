"""Sounds of held-out examples with what a model made of them, kept with the run for its report.

Sounds are WAV files in base64, as `allformer.sound.clip` makes them:

    Heard(clip(wave, rate), "nine two", "five two", right=False)           # a recogniser
    Heard(clip(wave, rate), versions=(Heard(clip(back, rate), name="1.5 kbit/s", score=4.1),))
    Heard(clip(wave, rate), name="Ada", prompt=0.8, given="six seven")     # it went on after 0.8 s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spoken:
    """A word, and from when to when it is said, in seconds."""

    text: str
    begin: float
    end: float


@dataclass(frozen=True)
class Heard:
    """A sound with what should have been made of it and what was; fields that a task does not have
    stay empty.

    `wanted` and `given` are transcripts or labels; `words` are those of `given` with their times.
    `versions` are the same sound through a codec, each with its name. Of a continuation the first
    `prompt` seconds were given; `given` is what a recogniser hears in the rest, `wanted` what would
    have been expected.
    """

    sound: str = ""
    wanted: str = ""
    given: str = ""
    right: bool | None = None  # None: not a matter of right or wrong
    score: float | None = None  # what the task measures
    name: str = ""  # of a speaker, or of a version
    prompt: float = 0.0
    words: tuple[Spoken, ...] = ()
    versions: tuple[Heard, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Heard:
        """What `asdict` gave."""
        plain = ("sound", "wanted", "given", "right", "score", "name", "prompt")
        return cls(
            **{name: raw[name] for name in plain},
            words=tuple(Spoken(**word) for word in raw["words"]),
            versions=tuple(map(Heard.read, raw["versions"])),
        )
