"""What tasks give back: small, frozen, and ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class Result:
    """What all of them can do."""

    def to_dict(self) -> dict[str, Any]:
        """`Label("POSITIVE", 0.98).to_dict()` → `{"label": "POSITIVE", "score": 0.98}`."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Fill(Result):
    """A token for a gap, its probability, and the text with it."""

    token: str
    score: float
    text: str
    id: int


@dataclass(frozen=True)
class Label(Result):
    """A class and its probability; of a regression, the value itself."""

    label: str
    score: float


@dataclass(frozen=True)
class Entity(Result):
    """A named thing: `text` is the characters `start` to `end` of its text."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Answer(Result):
    """`text` is the characters `start` to `end` of the passage; "" where it holds no answer."""

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Match(Result):
    """What a search found: its cosine, its number in the list, and itself."""

    score: float
    index: int
    found: Any


@dataclass(frozen=True)
class Detected(Result):
    """An object on an image; its `box` is left, top, right, below, in pixels."""

    label: str
    score: float
    box: tuple[float, ...]
