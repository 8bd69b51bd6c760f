"""Where examples come from: the data sections of objectives that have none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from allformer.train.sections.section import Count, Section, at_least, one_of, positive


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
    # {source: article, target: summary}: JSONL, CSV, Parquet … whose columns have these names
    columns: Mapping[str, Any] = field(default_factory=dict)
    format: str = "auto"  # of files with named columns
    prefix: str = ""  # before every source: "translate English to German: "
    truncate: bool = False  # a side that is too long is cut, instead of its pair left out

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns and set(self.columns) != {"source", "target"}:
            self.refuse("columns", "must name both sides", "try {source: article, target: summary}")
        if self.columns and self.path is None:
            self.refuse("columns", "are of files, and data.path is empty", "give data.path")

    @property
    def sides(self) -> tuple[int, int]:
        """Where a TSV without names has the source and the target."""
        return (1, 0) if self.swap else (0, 1)


@dataclass(frozen=True)
class TextData(Section, section="data"):
    """Where texts come from: files of the user's own, or a public corpus by name."""

    # a file, a pattern, a directory (with its splits), hf:NAME, or a list of them
    path: str | tuple[str, ...] | None = None
    corpus: str | None = None  # with `path`: the public corpus that lies in that folder
    format: str = "auto"
    columns: Mapping[str, Any] = field(default_factory=dict)  # {text: body}: not of plain text
    # of plain text, a document: lines with no blank one between them, or a whole file as it stands
    unit: Annotated[str | None, one_of("line", "document", "file")] = None
    validation: str | tuple[str, ...] | None = None  # files to validate on
    # else taken from train: so many texts, or a share of them (of a file: its end). None: 5 %
    hold_out: Annotated[float | None, positive("0.1, or 1000 texts")] = None
    max_length: Annotated[int, at_least(2)] = 256
    weights: tuple[float, ...] = ()  # how much of each path of the list is read
    stream: bool = False  # for what fits neither memory nor disk: read anew each epoch
    buffer: Count = 10_000  # texts of a stream that are shuffled together
    cache: str | None = None  # where tokenised texts are kept; None: the user's cache folder

    def __post_init__(self) -> None:
        super().__post_init__()
        if set(self.columns) - {"text"}:
            self.refuse("columns", "may name the text alone", "try columns: {text: body}")
        count = len(self.path) if isinstance(self.path, tuple) else 1
        if self.weights and (len(self.weights) != count or min(self.weights) <= 0):
            self.refuse(
                "weights",
                f"must be {count} positive numbers, one for each path",
                "leave out a path of weight 0",
            )

    @property
    def paths(self) -> tuple[str, ...]:
        """All of `path`, one or several."""
        if self.path is None:
            return ()
        return self.path if isinstance(self.path, tuple) else (self.path,)
