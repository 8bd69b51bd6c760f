"""Tokenise once: records through an encoder into a table that is found again next time."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from allformer.data.records import Pass, Record, Records
from allformer.data.table.encode import (
    Chunk,
    Encode,
    Pieces,
    can_be_sent,
    encoded_chunk,
    in_processes,
)
from allformer.data.table.table import Table, check_sums, read_manifest
from allformer.data.table.writer import Writer
from allformer.disk import sync_folder
from allformer.errors import DataError

Progress = Callable[[int, int], object]  # done and total: bytes of files, else records; 0: unknown
Warn = Callable[[str], object]

CHUNK = 4096  # records a call of the encoder
_CHARACTERS = 1 << 22  # or fewer, where they are long
_WORTH = 20.0  # seconds of work that must be left before processes are started
_MOST = 16  # processes
_PATIENCE = 10.0  # seconds of waiting for another process before it is said
_NOTHING = "the encoder gave no row for any record; does a limit of length leave everything out?"


def build_table(
    records: Iterable[Record],
    encode: Encode,
    folder: str | Path | None = None,
    *,
    key: str = "",
    workers: int | None = None,
    progress: Progress | None = None,
    chunk: int = CHUNK,
    warn: Warn = warnings.warn,
) -> Table:
    """Encode records into a table, or take the one that is there.

    >>> def encode(records):
    ...     return {"ids": tokenizer.encode_batch([record["text"] for record in records])}
    >>> key = records.fingerprint() + tokenizer_hash
    >>> table = build_table(records, encode, cache / "train", key=key)
    >>> table["ids"][0]
    memmap([ 17, 905,   4], dtype=uint16)

    `encode` gets a list of records and gives columns of equal length: numbers, strings, lists of
    numbers, or arrays. It may give fewer or more rows than it got. `folder` is the table's own; it
    is built aside and renamed as a whole, so that a build that was killed leaves nothing that
    counts. A whole table with the same `key` is taken as it is: put into the key all that decides
    the content. One that is damaged is built again, and `warn` says so. Of two processes that want
    the same folder, one builds and the other waits for it. Without `folder`: in memory.

    `workers` processes encode at once; 0: none but this one. By itself (`None`) the first chunk is
    timed: an encoder that keeps several cores busy already (the tokenisers library has threads of
    its own) stays in this process, and so does work that would be done before processes started.
    """
    if chunk < 1 or (workers is not None and workers < 0):
        raise DataError(f"chunk={chunk}, workers={workers}: at least 1 record, and 0 processes")
    if folder is None:
        pieces = list(_encoded(records, encode, workers, progress, chunk))
        table = Table.from_pieces(pieces)
        if not len(table):
            raise DataError(_NOTHING)
        return table
    folder = Path(folder)
    found, fault = _there(folder, key)
    if found is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder, warn):
        found, fault = _there(folder, key)  # by the one who had the lock before
        if found is not None:
            return found
        if fault:
            warn(f"{fault}; built again")
        _swept(folder)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.building-", dir=folder.parent))
        try:
            _write(aside, _encoded(records, encode, workers, progress, chunk), key)
            _put(aside, folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return Table.open(folder)


@contextmanager
def _locked(folder: Path, warn: Warn) -> Iterator[None]:
    """Alone with a folder; the system lets go of the lock of a process that was killed."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        warn(f"{folder}: another process is building this table; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _there(folder: Path, key: str) -> tuple[Table | None, str]:
    """The table in a folder if it is whole and has this key; else what is wrong, if anything."""
    if not folder.exists():
        return None, ""
    try:
        manifest = read_manifest(folder)
        if manifest.get("key") != key:
            return None, ""  # of other data: replaced without a word
        check_sums(folder, manifest)
        return Table.open(folder), ""
    except (DataError, OSError) as error:
        return None, str(error)


def _write(aside: Path, chunks: Iterator[Pieces], key: str) -> None:
    writer = Writer(aside)
    try:
        for pieces in chunks:
            with _said_where(aside):
                writer.add(pieces)
        if not writer.rows:
            raise DataError(_NOTHING)
        with _said_where(aside):
            writer.finish(key)
    finally:
        writer.close()


@contextmanager
def _said_where(aside: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # a full disk
        raise DataError(
            f"the table cannot be written to {aside.parent} ({error.strerror}); make room, or "
            "choose another folder"
        ) from error


def _put(aside: Path, folder: Path) -> None:
    """Rename the new table to its place. Who has the old one open keeps it until they close it."""
    aside.chmod(0o777 & ~_umask())  # mkdtemp lets nobody else in
    old = aside.with_name(aside.name.replace("building", "old"))
    if folder.exists():
        os.rename(folder, old)
    os.rename(aside, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _swept(folder: Path) -> None:
    """Remove what builds that were killed left behind; we hold the lock, so nobody is at it."""
    for kind in ("building", "old"):
        for left in folder.parent.glob(f".{folder.name}.{kind}-*"):
            shutil.rmtree(left, ignore_errors=True)


def _encoded(
    records: Iterable[Record],
    encode: Encode,
    workers: int | None,
    progress: Progress | None,
    chunk: int,
) -> Iterator[Pieces]:
    total = _total(records)
    chunks = _chunks(records, chunk)
    if workers is None:
        first = next(chunks, None)
        if first is None:
            return
        wall, busy = time.perf_counter(), time.process_time()
        pieces = encoded_chunk(encode, first)
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        yield pieces
        if progress is not None:
            progress(first.done, total)
        left = wall * (total / max(first.done, 1) - 1) if total else 0.0
        workers = _choice(left, busy / max(wall, 1e-9), _cores()) if can_be_sent(encode) else 0
    for pieces, done in _all(encode, chunks, workers):
        yield pieces
        if progress is not None:
            progress(done, total)


def _all(encode: Encode, chunks: Iterator[Chunk], workers: int) -> Iterator[tuple[Pieces, int]]:
    if workers:
        yield from in_processes(encode, chunks, workers)
    else:
        for chunk in chunks:
            yield encoded_chunk(encode, chunk), chunk.done


def _choice(left: float, busy: float, cores: int) -> int:
    """How many processes pay: `left` seconds of work in one, which keeps `busy` cores at work."""
    if cores < 2 or left < _WORTH or busy > cores / 2:
        return 0
    return min(cores, _MOST)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _total(records: Iterable[Record]) -> int:
    if isinstance(records, Records):
        return records.size
    return len(records) if isinstance(records, Sized) else 0


def _chunks(records: Iterable[Record], size: int) -> Iterator[Chunk]:
    """Cut a reading into chunks of so many records, or so many characters if that is less."""
    reading = Pass(records) if isinstance(records, Records) else None
    chunk, places, characters, number = list[Record](), list[tuple[str, int]](), 0, 0
    for record in reading if reading is not None else records:
        number += 1
        chunk.append(record)
        places.append((reading.where, reading.number) if reading else ("record", number))
        for value in record.values():
            if isinstance(value, str):
                characters += len(value)
        if len(chunk) >= size or characters >= _CHARACTERS:
            yield Chunk(chunk, places, number if reading is None else reading.done)
            chunk, places, characters = [], [], 0
    if chunk:
        yield Chunk(chunk, places, number if reading is None else reading.done)
