"""The user's parallel text as a stream of (source, target) pairs, with errors that name the line.

Files are read line by line each time they are iterated, never whole; `.gz` is unpacked on the way.
A line ends at "\\n" only: real corpora hold U+2028 or U+0085 inside a sentence, and a reader that
breaks lines there shifts everything after them against the other language.
"""

from __future__ import annotations

import gzip
import heapq
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from allformer.errors import DataError

Pair = tuple[str, str]
Warn = Callable[[str], object]

SPLITS = {
    "train": ("train",),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "test_2016_flickr"),  # as it lies in Multi30k's repository
}


@dataclass
class Skipped:
    """How many lines the last full pass over a `ParallelSource` left out, by reason."""

    one_side_empty: int = 0
    both_empty: int = 0


@dataclass(frozen=True)
class ParallelSource:
    """Pairs on disk; iterate as often as you like. Made by `read_parallel` and `read_tsv`.

    >>> pairs = read_parallel("train.en", "train.de")
    >>> next(iter(pairs))
    ('A dog runs.', 'Ein Hund rennt.')

    A pair with an empty side is left out; after a full pass `.skipped` has the counts, and `warn`
    is called with one sentence if a side stood alone.
    """

    paths: tuple[Path, ...]  # one TSV file, or source and target
    columns: tuple[int, int] = (0, 1)  # of the TSV file
    warn: Warn = field(default=warnings.warn, compare=False)
    skipped: Skipped = field(default_factory=Skipped, compare=False)

    @property
    def description(self) -> str:
        """The files, for messages."""
        return " + ".join(map(str, self.paths))

    def __iter__(self) -> Iterator[Pair]:
        skipped, kept = Skipped(), False
        for source, target in self._lines():
            if source and target:
                kept = True
                yield source, target
            elif source or target:
                skipped.one_side_empty += 1
            else:
                skipped.both_empty += 1
        self.skipped.one_side_empty = skipped.one_side_empty
        self.skipped.both_empty = skipped.both_empty
        if not kept:
            raise DataError(f"{self.description}: no pair in it; every line is empty")
        if skipped.one_side_empty:
            self.warn(
                f"{self.description}: skipped {skipped.one_side_empty} pairs with one side empty"
            )

    def _lines(self) -> Iterator[Pair]:
        if len(self.paths) == 1:
            return _tsv_lines(self.paths[0], self.columns)
        return _parallel_lines(*self.paths)


def read_parallel(
    source_path: str | Path, target_path: str | Path, *, warn: Warn = warnings.warn
) -> ParallelSource:
    """Pairs from two files, line by line: `read_parallel("train.en", "train.de.gz")`."""
    paths = Path(source_path), Path(target_path)
    for path in paths:
        _check_file(path)
    return ParallelSource(paths, warn=warn)


def read_tsv(
    path: str | Path, columns: tuple[int, int] = (0, 1), *, warn: Warn = warnings.warn
) -> ParallelSource:
    """Pairs from two columns of a tab-separated file: `read_tsv("a.tsv.gz", columns=(1, 0))`."""
    _check_file(Path(path))
    if len(columns) != 2 or min(columns) < 0:
        raise DataError(f"columns={columns} must be two column numbers from 0, such as (0, 1)")
    return ParallelSource((Path(path),), columns, warn)


@dataclass(frozen=True)
class Corpus:
    """The splits of a data set, each an iterable of (source, target), or `None`.

    >>> corpus = Corpus(train=read_tsv("train.tsv"))
    """

    train: Iterable[Pair]
    validation: Iterable[Pair] | None = None
    test: Iterable[Pair] | None = None


def open_corpus(
    data: str | Path,
    source: str = "en",
    target: str = "de",
    *,
    columns: tuple[int, int] = (0, 1),
    warn: Warn = warnings.warn,
) -> Corpus:
    """Open what the user calls `--data`.

    >>> open_corpus("multi30k", "en", "de").train  # a directory: train.en + train.de or train.tsv,
    ...                                            # val / valid / validation / dev, test; also .gz
    >>> open_corpus("a.en,a.de")                   # two files
    >>> open_corpus("pairs.tsv.gz", columns=(1, 0))  # one file; here the target comes first
    """
    path = Path(data)
    if path.is_dir():
        found = directory_splits(path, source, target, columns=columns, warn=warn)
        if "train" not in found:
            raise DataError(
                f"{path} has no training data: looked for train.{source}[.gz] with "
                f"train.{target}[.gz], and train.tsv[.gz]; {listing(path)}. Rename the files, or "
                "name the languages with --source and --target"
            )
        return Corpus(**found)
    if path.is_file():
        if path.name.removesuffix(".gz").endswith(".tsv"):
            return Corpus(read_tsv(path, columns, warn=warn))
        raise DataError(
            f"--data {data} is one file but not .tsv or .tsv.gz; give a directory with "
            f"train.{source} and train.{target}, two files as A.{source},A.{target}, or a .tsv file"
        )
    sides = str(data).split(",")
    if len(sides) == 2:
        return Corpus(read_parallel(sides[0].strip(), sides[1].strip(), warn=warn))
    raise DataError(
        f"--data {data}: no such file or directory; give a directory with train.{source} and "
        f"train.{target}, two files as A.{source},A.{target}, or a .tsv file"
    )


@dataclass(frozen=True)
class HeldOut:
    """The pairs of one side of a split by the hash of the source sentence; see `hold_out`."""

    pairs: Iterable[Pair]
    limit: int  # sentences whose hash is at most this are the held-out ones
    seed: int
    inside: bool

    def __iter__(self) -> Iterator[Pair]:
        for pair in self.pairs:
            if (text_hash(pair[0], self.seed) <= self.limit) == self.inside:
                yield pair


def hold_out(pairs: Iterable[Pair], count: int, seed: int = 0) -> tuple[HeldOut, HeldOut]:
    """Split pairs into (train, validation), `count` different source sentences in the latter.

    >>> train, validation = hold_out(read_tsv("pairs.tsv"), 1000)

    The choice depends on the sentences and the seed alone, not on their order. All pairs of a
    source sentence fall on the same side, so validation may hold a few more than `count` pairs.
    Reads `pairs` once here (it must allow several passes) and keeps only `count` hashes.
    """
    if iter(pairs) is pairs:
        raise DataError("hold_out needs pairs it can read several times; give a list or a file")
    if count < 1:
        raise DataError(f"count={count} must be at least 1 sentence to hold out")
    limit, different = smallest((text_hash(source, seed) for source, _ in pairs), count)
    if limit is None:
        raise DataError(
            f"count={count} leaves nothing to train on: there are {different} different source "
            "sentences; hold out fewer"
        )
    return HeldOut(pairs, limit, seed, False), HeldOut(pairs, limit, seed, True)


def smallest(hashes: Iterable[int], count: int) -> tuple[int | None, int]:
    """The largest of the `count` smallest different hashes, and how many of them there are.

    Without a limit (None) there are no others beside them.
    """
    largest: list[int] = []  # a heap of the `count` smallest hashes, negated
    chosen: set[int] = set()
    others = False
    for value in hashes:
        if value in chosen:
            continue
        if len(largest) < count:
            heapq.heappush(largest, -value)
            chosen.add(value)
            continue
        others = True
        if value < -largest[0]:
            chosen.remove(-heapq.heapreplace(largest, -value))
            chosen.add(value)
    return (-largest[0] if others else None), len(largest)


def text_hash(text: str, seed: int) -> int:
    """Of the words of a text, whatever the white space: `text_hash("a  dog", 0)`."""
    plain = " ".join(text.split()).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(plain, digest_size=8, salt=str(seed).encode()[:16]).digest())


def directory_splits(
    folder: Path,
    source: str,
    target: str,
    *,
    columns: tuple[int, int] = (0, 1),
    warn: Warn = warnings.warn,
) -> dict[str, ParallelSource]:
    """The splits that a directory holds, by name: train, validation, test."""
    found: dict[str, ParallelSource] = {}
    for split, names in SPLITS.items():
        for name in names:
            sides = [_plain_or_gz(folder / f"{name}.{language}") for language in (source, target)]
            table = _plain_or_gz(folder / f"{name}.tsv")
            if sides[0] and sides[1]:
                found[split] = read_parallel(sides[0], sides[1], warn=warn)
            elif table:
                found[split] = read_tsv(table, columns, warn=warn)
            elif sides[0] or sides[1]:
                missing = target if sides[0] else source
                raise DataError(
                    f"{sides[0] or sides[1]} has no counterpart {name}.{missing}[.gz]; "
                    f"{listing(folder)}"
                )
            if split in found:
                break
    return found


def _plain_or_gz(path: Path) -> Path | None:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None


def listing(folder: Path) -> str:
    """What a folder holds, for messages: `listing(Path("corpus"))` → "there is a.en, a.de"."""
    names = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"there is {shown}" if names else "the directory is empty"


def _check_file(path: Path) -> None:
    if path.is_file():
        return
    folder = path.parent
    there = listing(folder) if folder.is_dir() else f"there is no directory {folder}"
    raise DataError(f"no such file: {path}; {there}")


def _parallel_lines(source_path: Path, target_path: Path) -> Iterator[Pair]:
    sources, targets = text_lines(source_path), text_lines(target_path)
    for count, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            longer = count + 1 + sum(1 for _ in (targets if source is None else sources))
            counts = (count, longer) if source is None else (longer, count)
            raise DataError(
                f"line counts differ: {source_path} has {counts[0]} and {target_path} has "
                f"{counts[1]}; line n of the one must translate line n of the other"
            )
        yield source.strip(), target.strip()


def _tsv_lines(path: Path, columns: tuple[int, int]) -> Iterator[Pair]:
    needed = max(columns) + 1
    for number, line in enumerate(text_lines(path), 1):
        cells = line.split("\t")
        if len(cells) >= needed:
            yield cells[columns[0]].strip(), cells[columns[1]].strip()
        elif line.strip():
            raise DataError(
                f"{path}, line {number}: {len(cells)} column(s) where {needed} are needed; "
                "source and target must be separated by a tab"
            )
        else:
            yield "", ""


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, as a stream, without their line ends."""
    number = offset = 0
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror}; check the path") from error
    with raw:
        for number, line in enumerate(_unpacked(raw, path), 1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, offset + error.start, line) from error
            offset += len(line)
            if number == 1:
                text = text.removeprefix("\ufeff")  # the byte order mark that Windows writes
            yield text.rstrip("\r\n")
    if number == 0:
        raise DataError(f"{path} is empty; one sentence a line is needed")


def _unpacked(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    packed = path.suffix == ".gz" or raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    if not packed:
        yield from raw
        return
    try:
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield from unpacked
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error


def not_utf8(path: Path, number: int, offset: int, line: bytes) -> DataError:
    """The error for a line that is no UTF-8: it names the byte, and a command that converts."""
    utf16 = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
    guess = "utf-16" if utf16 else "latin1"
    also = "" if utf16 else " (Chinese text is often gb18030 or big5 instead of latin1)"
    cat = {".gz": "zcat", ".xz": "xzcat", ".bz2": "bzcat"}.get(path.suffix)
    unpack = f"{cat} {path} | iconv" if cat else f"iconv {path}"
    name = path.name.removesuffix(path.suffix) if cat else path.name
    return DataError(
        f"{path}, line {number}, byte {offset}: not UTF-8; convert it: "
        f"{unpack} -f {guess} -t utf-8 > {name}.utf8{also}"
    )
