"""Texts from the command line, a file or standard input; one result for each, in order.

Texts that were typed get tables to read; lines get lines: one line out for each line in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from allformer.cli.common import say, show
from allformer.errors import AllformerError, DataError

CHUNK = 256  # lines read ahead, so that lines of like length can go together
UNREADABLE = object()  # in the place of a result


@dataclass(frozen=True)
class Source:
    """Where the texts come from; `typed` by a person who wants to read the results."""

    lines: Iterable[str]
    typed: bool = False
    total: int | None = None
    name: str = ""
    unit: str = "text"  # what a line is
    live: bool = False  # a person waits for each result before typing the next text
    leaves: bool = False  # out what cannot be read, and goes on with the others


@dataclass(frozen=True)
class Verb:
    """How one verb works: on a list of texts, and how it prints a result."""

    work: Callable[[list[Any]], Iterable[Any]]
    line: Callable[[Any], str]  # one line
    record: Callable[[Any, Any], dict[str, Any]]  # for JSON, of a text and its result
    table: Callable[[Any, Any], Any] | None = None  # to read; None: the line
    blank: Callable[[], str] = str  # the line of what could not be read, where each has a line


def read_source(texts: Sequence[str] | None, file: Path | None) -> Source:
    """What was typed, or the lines of a file, or standard input."""
    if texts and file:
        raise AllformerError("give TEXT or --file, not both")
    if texts:
        return Source(texts, typed=True)
    if file is not None and file.exists() and not (file.is_file() or file.is_dir()):
        return Source(raw_lines(file.open("rb"), str(file)), name=str(file))  # read once: a pipe
    if file is not None:
        from allformer.data.parallel import text_lines

        return Source(text_lines(file), total=sum(1 for _ in text_lines(file)), name=str(file))
    if sys.stdin is None:
        raise AllformerError("there is no TEXT, no --file, and standard input is closed; give one")
    if sys.stdin.isatty():
        say("type a line, Ctrl-D to end")
        return Source(iter(sys.stdin.readline, ""), typed=True, live=True)
    return Source(raw_lines(sys.stdin.buffer, "standard input"), name="standard input")


def raw_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """A stream line by line, without line ends and byte order mark; it is read but once."""
    for number, raw in enumerate(stream, 1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise AllformerError(
                f"{name}, line {number} is not UTF-8; convert it first: iconv -t utf-8"
            ) from None
        yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def run(source: Source, verb: Verb, *, as_json: bool = False, chunk: int = CHUNK) -> None:
    """Work through the texts and print."""
    for text, result in work_through(source, verb, chunk):
        if as_json and result is not UNREADABLE:
            print(json.dumps(verb.record(text, result), ensure_ascii=False), flush=True)
        elif as_json:
            continue
        elif source.typed and verb.table is not None:
            if result is not UNREADABLE:
                show(verb.table(text, result))
        else:
            line = verb.blank() if result is UNREADABLE else verb.line(result)
            print(one_line(line), flush=True)


def work_through(
    source: Source, verb: Verb, chunk: int = CHUNK, *, seen: bool = True
) -> Iterator[tuple[str, Any]]:
    """Each text with its result, or `UNREADABLE`, which was told and fails at the end; a bar where
    the results themselves are not `seen` at once."""
    from allformer.train.progress import Progress

    if source.total is None or (seen and sys.stdout.isatty()):
        yield from _results(source, verb, chunk)
        return
    bar = Progress(source.total, what=f"{source.unit}s", unit=source.unit)
    try:
        for done, pair in enumerate(_results(source, verb, chunk), 1):
            yield pair
            bar.update(done)
    finally:
        bar.close()


def _results(source: Source, verb: Verb, chunk: int) -> Iterator[tuple[str, Any]]:
    stream, done, faults = (line.rstrip("\r\n") for line in source.lines), 0, 0
    found: Iterable[tuple[str, Any]]
    while texts := list(islice(stream, 1 if source.live else chunk)):
        try:
            found = zip(texts, verb.work(texts), strict=True)
        except AllformerError as error:
            several = bool(done or texts[1:] or source.live)
            if source.leaves and isinstance(error, DataError) and several:
                found = list(_one_by_one(texts, verb))
                faults += sum(result is UNREADABLE for _, result in found)
            elif source.typed:
                raise
            else:
                last = f"s {done + 1} to {done + len(texts)}" if texts[1:] else f" {done + 1}"
                raise type(error)(f"{source.name}, line{last}: {error}") from None
        yield from found
        done += len(texts)
    if faults:
        raise DataError(f"{faults} of {done:,} {source.unit}s are left out; see above")


def _one_by_one(texts: list[str], verb: Verb) -> Iterator[tuple[str, Any]]:
    """So that one that cannot be read does not take the others with it."""
    for text in texts:
        try:
            yield text, next(iter(verb.work([text])))
        except DataError as error:
            told = str(error)
            say(f"left out: {told if text in told else f'{text}: {told}'}")
            yield text, UNREADABLE


def one_line(text: str) -> str:
    """A result that has line breaks, on one line: \\n stands for them."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def split_pair(line: str) -> tuple[str, str]:
    """Two texts with a tab between."""
    first, tab, second = line.partition("\t")
    if not tab:
        raise AllformerError(f"{line[:60]!r} has no tab; a line holds two texts, a tab between")
    return first, second
