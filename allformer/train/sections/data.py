"""Where examples come from: the data sections of objectives that have none of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from allformer.train.sections.section import Section, at_least


@dataclass(frozen=True)
class PathData(Section, section="data"):
    """A path, and the most tokens of an example: what an objective has that says nothing else."""

    path: str | None = None
    max_length: Annotated[int, at_least(2)] = 256


@dataclass(frozen=True)
class PairData(Section, section="data"):
    """Where pairs come from: a corpus by name (built in or public), or files of the user's own."""

    source: str = "en"
    target: str = "de"
    corpus: str | None = None
    path: str | None = None  # a directory, A.en,A.de or a .tsv; wins over `corpus`
    max_length: Annotated[int, at_least(2)] = 256
    # sentences for validation taken from train where it has no split; None: 5 %, at most 1,000
    hold_out: Annotated[int | None, at_least(1)] = None
    swap: bool = False  # a TSV whose first column is the target

    @property
    def columns(self) -> tuple[int, int]:
        """Where a TSV has the source and the target."""
        return (1, 0) if self.swap else (0, 1)
