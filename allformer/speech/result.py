"""What a transcription gives back: small, frozen, and ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Word:
    """A word (with the space before it) and when it is said, in seconds."""

    word: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class Segment:
    """A stretch of speech and its text, `start` to `end` in seconds.

    `seek` is the frame (10 ms) at which its window began; `temperature`, `avg_logprob`,
    `compression_ratio` and `no_speech_prob` are the window's. `words` is None unless asked for.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] | None = None

    @property
    def said(self) -> tuple[Word, ...]:
        """Its words, if they have times."""
        return self.words or ()

    def to_dict(self) -> dict[str, Any]:
        """As openai-whisper's dictionaries are."""
        told = asdict(self)
        told["tokens"] = list(self.tokens)
        words = told.pop("words")
        return told if words is None else {**told, "words": list(words)}


@dataclass(frozen=True)
class Transcript:
    """What was said in a recording of `duration` seconds.

    >>> transcript = af.transcribe("talk.mp3")
    >>> transcript.text, transcript.segments[0].start, transcript.language
    """

    text: str
    segments: tuple[Segment, ...] = field(repr=False)
    language: str
    duration: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """`text`, `segments`, `language`, as openai-whisper writes them, and the duration."""
        told = [segment.to_dict() for segment in self.segments]
        return {
            "text": self.text,
            "segments": told,
            "language": self.language,
            "duration": self.duration,
        }


@dataclass(frozen=True)
class Decoded:
    """What one window says: its tokens without the end, and how sure that is."""

    tokens: tuple[int, ...]
    text: str
    language: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
