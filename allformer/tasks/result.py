"""What tasks give back: small, frozen, and ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


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


@dataclass(frozen=True)
class Segment(Result):
    """A part of an image: `id` is its number in the map, `area` its pixels that are seen there,
    `box` what is around them: left, top, right, below. A class has no score."""

    id: int
    label: str
    score: float | None
    area: int
    box: tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class Segmentation:
    """A map of an image: `ids` (H W) has the number of a segment, or −1, for each pixel."""

    task: str
    ids: npt.NDArray[np.int32]
    segments: list[Segment]

    def mask(self, segment: Segment) -> npt.NDArray[np.bool_]:
        """The pixels of a segment, H W."""
        mask: npt.NDArray[np.bool_] = self.ids == segment.id
        return mask

    def to_dict(self) -> dict[str, Any]:
        """All but the map."""
        height, width = self.ids.shape
        told = [segment.to_dict() for segment in self.segments]
        return {"task": self.task, "height": height, "width": width, "segments": told}
