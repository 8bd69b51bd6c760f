"""Examples of a stage: parts of streams, cut anew in each epoch, as rows of ids.

    examples = cut_anew(ears, heard, stage, seconds=6.0, key=(seed, epoch))
    batch = examples.collate(index)

Legend: N tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.audiolm.hearing import Encoded, Hearing
from allformer.audiolm.tokens import Row, Stage
from allformer.data.encoded import Rows


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows, and how many ids of each are read and not said."""

    rows: Rows
    given: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Examples:
        """`Examples.of([stage.row(units, codes)])`."""
        found = list(rows)
        lengths = np.array([len(row.ids) for row in found], np.int64)
        ids = np.concatenate([row.ids for row in found]) if found else np.zeros(0, np.int64)
        starts = np.cumsum(lengths) - lengths
        return cls(
            Rows(ids.astype(np.int32), lengths, starts),
            np.array([r.given for r in found], np.int64),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens that each row reads: the last one is said alone."""
        return np.asarray(self.rows.lengths - 1)


def cut_anew(
    ears: Hearing,
    streams: Sequence[Encoded],
    stage: Stage,
    seconds: float,
    key: Sequence[int],
) -> Examples:
    """Of each stream as many parts as it is long, from anywhere, by the key alone."""
    chance = np.random.default_rng(key)
    rows = []
    for heard in streams:
        for _ in range(max(1, round(heard.seconds / seconds))):
            start = chance.uniform(0, max(0.0, heard.seconds - seconds))
            rows.append(_row(ears.cut(heard, start, seconds), stage))
    return Examples.of(rows)


def cut_once(ears: Hearing, streams: Sequence[Encoded], stage: Stage, seconds: float) -> Examples:
    """Of each stream its parts one after the other: the same each time."""
    rows = []
    for heard in streams:
        for number in range(max(1, int(heard.seconds / seconds))):
            rows.append(_row(ears.cut(heard, number * seconds, seconds), stage))
    return Examples.of(rows)


def _row(heard: Any, stage: Stage) -> Row:
    return stage.row(heard.units, heard.codes)
