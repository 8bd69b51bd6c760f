"""What a trained model says of held-out examples, kept with the run for its report.

RUN/predictions.json: {"rows": [{"input": …, "wanted": …, "given": …, "right": true}], …}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allformer.errors import CheckpointError
from allformer.json_file import read_object

FILE = "predictions.json"


@dataclass(frozen=True)
class Prediction:
    """One example: what was read, what should have been said, what was said."""

    input: str
    wanted: str
    given: str
    right: bool | None = None  # None: not a matter of right or wrong
    score: float | None = None  # how sure the model was, 0 … 1


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
                tuple(Prediction(**row) for row in raw["rows"]),
                tuple(raw["labels"]),
                tuple(map(tuple, raw["confusion"])),
                tuple(map(tuple, raw["calibration"])),
                dict(raw["figures"]),
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
