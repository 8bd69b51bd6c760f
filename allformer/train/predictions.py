"""What a trained model says of held-out examples, kept with the run for its report.

RUN/predictions.json: {"rows": [{"input": …, "wanted": …, "given": …, "right": true}], …}

Of a model that sees, `pictures` instead of `rows`; pictures are PNG files in base64, as
`allformer.images.thumbnail` makes them:

    Seen(thumbnail(pixels), "boot", "shoe", right=False, score=0.81)        # classes, captions
    Seen(thumbnail(pixels), boxes=(Box((0.1, 0.2, 0.5, 0.9), "shoe"),),
         found=(Box((0.1, 0.2, 0.5, 0.8), "shoe", 0.97),))                  # detection
    Seen(thumbnail(pixels), mask=Mask(label_map(wanted), ("sky", "road")),
         found_mask=Mask(label_map(given), ("sky", "road")), score=0.77)    # segmentation
    Seen(thumbnail(pixels), again=thumbnail(decoded), score=0.02)           # a codec
    Seen(wanted="a red shoe", drawn=(Seen(thumbnail(first)), Seen(thumbnail(second))))

Of a model that hears, `sounds` (`heard.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allformer.errors import CheckpointError
from allformer.json_file import read_object
from allformer.train.heard import Heard

FILE = "predictions.json"


@dataclass(frozen=True)
class Prediction:
    """One example: what was read, what should have been said, what was said."""

    input: str
    wanted: str
    given: str
    right: bool | None = None  # None: not a matter of right or wrong
    score: float | None = None  # how sure the model was, 0 … 1
    before: str | None = None  # what was said before training, where that was kept
    rewards: tuple[float, float] | None = None  # of what was said before and after, if judged

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Prediction:
        """What `asdict` gave."""
        pair = raw.get("rewards")  # older runs have none
        return cls(**{**raw, "rewards": None if pair is None else (pair[0], pair[1])})


@dataclass(frozen=True)
class Box:
    """A box around something: left, top, right, bottom as shares of the picture's sides, 0 … 1."""

    sides: tuple[float, float, float, float]
    label: str
    score: float | None = None  # of one that was found: how sure

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Box:
        """What `asdict` gave."""
        return cls(tuple(raw["sides"]), raw["label"], raw["score"])


@dataclass(frozen=True)
class Mask:
    """What each pixel belongs to: `image` is a PNG by `label_map`, whose value k is `names[k]` and
    whose 255 is nothing. Of instances and panoptic segments a name may stand there several times.
    """

    image: str
    names: tuple[str, ...]

    @classmethod
    def read(cls, raw: Mapping[str, Any] | None) -> Mask | None:
        """What `asdict` gave."""
        return None if raw is None else cls(raw["image"], tuple(raw["names"]))


@dataclass(frozen=True)
class Seen:
    """A picture with what should have been said and what was said of it; fields that a task does
    not have stay empty.

    `wanted` and `given` are labels or captions; `boxes` and `mask` the true ones, `found` and
    `found_mask` the model's. `again` is what a codec makes of it. Of a caption (`wanted`) without a
    picture, `drawn` are those drawn for it, each with what a classifier finds in it (`given`,
    `right`) or how a re-ranker scores it (`score`), the best first.
    """

    image: str = ""
    wanted: str = ""
    given: str = ""
    right: bool | None = None  # None: not a matter of right or wrong
    score: float | None = None  # how sure the model was, 0 … 1; else what the task measures
    boxes: tuple[Box, ...] = ()
    found: tuple[Box, ...] = ()
    mask: Mask | None = None
    found_mask: Mask | None = None
    again: str = ""
    drawn: tuple[Seen, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Seen:
        """What `asdict` gave."""
        told = {name: raw[name] for name in ("image", "wanted", "given", "right", "score", "again")}
        return cls(
            **told,
            boxes=tuple(map(Box.read, raw["boxes"])),
            found=tuple(map(Box.read, raw["found"])),
            mask=Mask.read(raw["mask"]),
            found_mask=Mask.read(raw["found_mask"]),
            drawn=tuple(map(Seen.read, raw["drawn"])),
        )


@dataclass(frozen=True)
class Predictions:
    """Some examples, and where it fits how the classes are mistaken for each other.

    `confusion[i][j]`: how often label i was called label j, over the whole set. `calibration`: by
    how sure the model was, from 0 to 1 in equal steps: (how many, mean score, share that is right).
    """

    rows: tuple[Prediction, ...] = ()
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    calibration: tuple[tuple[int, float, float], ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    pictures: tuple[Seen, ...] = ()
    sounds: tuple[Heard, ...] = ()

    def save(self, run: Path) -> None:
        """Beside the weights."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (run / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, run: Path) -> Predictions | None:
        """Of a run, or None where it has none."""
        if not (run / FILE).is_file():
            return None
        raw: dict[str, Any] = read_object(run / FILE, CheckpointError)
        try:
            return cls(
                tuple(map(Prediction.read, raw["rows"])),
                tuple(raw["labels"]),
                tuple(map(tuple, raw["confusion"])),
                tuple(map(tuple, raw["calibration"])),
                dict(raw["figures"]),
                tuple(map(Seen.read, raw.get("pictures", ()))),  # older runs have none
                tuple(map(Heard.read, raw.get("sounds", ()))),
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{run / FILE} is not what training writes ({error}); remove it"
            ) from None


def calibrated(scores: Iterable[float], right: Iterable[bool], bins: int = 10) -> tuple[Any, ...]:
    """`calibrated([0.9, 0.6], [True, False])`: how often what is said so surely is right."""
    table = [[0, 0.0, 0] for _ in range(bins)]
    for score, good in zip(scores, right, strict=True):
        row = table[min(bins - 1, int(score * bins))]
        row[0] += 1
        row[1] += score
        row[2] += good
    return tuple((n, total / n if n else 0.0, hits / n if n else 0.0) for n, total, hits in table)
