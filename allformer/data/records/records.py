"""Records of one or many files: a re-iterable that reads them anew on each pass, never whole.

>>> records = open_records("reviews/*.csv", columns={"text": "sentence", "label": "sentiment"})
>>> next(iter(records))
{'text': 'A fine film.', 'label': '1'}
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from allformer.data.parallel import text_hash
from allformer.data.records.format import FORMATS, Format, Options, Reading, Record
from allformer.errors import DataError

Warn = Callable[[str], object]


Columns = str | tuple[str, ...]  # one, several together, or (): all that there are


@dataclass(frozen=True)
class Source:
    """A file (or what stands for one) and the name of its format."""

    path: Path
    format: str

    @property
    def kind(self) -> Format:
        """The registered format."""
        return FORMATS[self.format]

    @property
    def size(self) -> int:
        """Bytes on disk, packed as they are; 0 for what is no file."""
        return self.path.stat().st_size if self.path.is_file() else 0


@dataclass(frozen=True)
class Half:
    """One side of a split by the hash of what some columns say; see `hold_out`."""

    column: Columns
    limit: int  # texts whose hash is at most this are the held-out ones
    seed: int
    inside: bool

    def has(self, record: Record) -> bool:
        return (said(record, self.column, self.seed) <= self.limit) == self.inside


def said(record: Record, column: Columns, seed: int) -> int:
    """The hash of a column's text, of several columns' together, or of all that a record says where
    it has none of them."""
    names = (column,) if isinstance(column, str) else column
    there = [str(record[name]) for name in names if name in record]
    return text_hash("\n".join(filter(None, there)) if there else str(record), seed)


@dataclass
class Skipped:
    """What the last full pass left out under `skip_bad`, and what was wrong with the first."""

    count: int = 0
    first: str = ""


@dataclass(frozen=True)
class Records:
    """Records on disk; iterate as often as you like. Made by `open_records` and `hold_out`."""

    sources: tuple[Source, ...]
    columns: Mapping[str, str] = field(default_factory=dict)  # ours → the file's; none: as there
    options: Options = field(default_factory=Options)
    skip_bad: bool = False
    half: Half | None = None
    warn: Warn = field(default=warnings.warn, compare=False)
    skipped: Skipped = field(default_factory=Skipped, compare=False)

    def __iter__(self) -> Iterator[Record]:
        return iter(Pass(self))

    @property
    def description(self) -> str:
        """The files, for messages."""
        paths = [str(source.path) for source in self.sources]
        more = f" and {len(paths) - 3} more" if len(paths) > 4 else ""
        return " + ".join(paths[:3] if more else paths) + more

    @property
    def size(self) -> int:
        """Bytes of all files as they lie on disk, for a progress bar."""
        return sum(source.size for source in self.sources)

    def count(self) -> int:
        """How many records a pass gives; reads them all."""
        return sum(1 for _ in self)

    def fingerprint(self) -> str:
        """A hash of everything that decides the records: `records.fingerprint()` → "5f1c…".

        File names, sizes and every byte of their content, formats, options and columns; not the
        folder: a corpus that was moved is the same corpus.
        """
        parts = {
            "sources": [_identity(source) for source in self.sources],
            "columns": dict(self.columns),
            "options": asdict(self.options),
            "skip_bad": self.skip_bad,
            "half": asdict(self.half) if self.half else None,
        }
        return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


class Pass:
    """One reading of `Records`, that knows where it is.

    >>> reading = Pass(records)
    >>> for record in reading:
    ...     print(reading.place, reading.done, "of", reading.records.size, "bytes")
    reviews/a.csv, line 2 65536 of 730112 bytes

    `source` and `record` say where to begin: so many records of that source are passed over, bad
    ones and those of the other half included.
    """

    def __init__(self, records: Records, source: int = 0, record: int = 0) -> None:
        self.records = records
        self.source, self.record = source, record  # where the next record comes from
        self.where, self.number = "", 0  # the last record: "a.csv, line" and 12
        self._behind = sum(each.size for each in records.sources[:source])
        self._reading = Reading(records.options)

    @property
    def place(self) -> str:
        """Where the last record stands: "a.csv, line 12"."""
        return f"{self.where} {self.number}"

    @property
    def done(self) -> int:
        """Bytes read so far."""
        return self._behind + self._reading.position()

    def __iter__(self) -> Iterator[Record]:
        records, skipped, kept = self.records, Skipped(), False
        resumed = bool(self.source or self.record)
        while self.source < len(records.sources):
            for record in self._records_of(records.sources[self.source], skipped):
                kept = True
                yield record
            self._behind += records.sources[self.source].size
            self._reading.position = lambda: 0
            self.source, self.record = self.source + 1, 0
        records.skipped.count, records.skipped.first = skipped.count, skipped.first
        if skipped.count:
            records.warn(
                f"{records.description}: {skipped.count} bad records skipped; the first: "
                f"{skipped.first}"
            )
        if not kept and not resumed and records.half is None:
            raise DataError(f"{records.description}: no record in it")

    def _records_of(self, source: Source, skipped: Skipped) -> Iterator[Record]:
        records, start = self.records, self.record
        self.where = f"{source.path}, {source.kind.counts}"
        for index, (number, item) in enumerate(source.kind.read(source.path, self._reading)):
            if index < start:
                continue
            self.number, self.record = number, index + 1
            found = item if isinstance(item, DataError) else self._renamed(item)
            if isinstance(found, DataError):
                if not records.skip_bad:
                    raise found
                skipped.count += 1
                skipped.first = skipped.first or str(found)
            elif records.half is None or records.half.has(found):
                yield found

    def _renamed(self, record: Record) -> Record | DataError:
        columns = self.records.columns
        if not columns:
            return record
        try:
            found = {ours: record[theirs] for ours, theirs in columns.items()}
        except KeyError as error:
            there = ", ".join(map(str, list(record)[:12])) or "nothing"
            return DataError(
                f"{self.place}: no column {error.args[0]!r}; there is {there}: name "
                "the right ones in columns (allformer tune: --column OURS=THEIRS)"
            )
        if None in found.values():
            empty = next(columns[ours] for ours, value in found.items() if value is None)
            return DataError(
                f"{self.place}: column {empty!r} has no value (null); fill it in, "
                "or pass over such records with skip_bad"
            )
        return found


def _identity(source: Source) -> list[object]:
    if source.kind.identity is not None:
        return [str(source.path), source.format, source.kind.identity(source.path)]
    try:
        seen = source.path.stat()
        digest = _content(source.path, seen.st_size, seen.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{source.path} cannot be read: {error.strerror}") from error
    return [source.path.name, source.format, seen.st_size, digest]


@lru_cache(maxsize=4096)
def _content(path: Path, size: int, modified: int) -> str:
    """Read once a process for each state of a file: size and time tell whether it was written."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
