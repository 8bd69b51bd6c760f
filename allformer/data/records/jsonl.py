"""JSON: one object a line, or one array of objects a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allformer.data.records.format import Item, Reading, Record, format
from allformer.data.records.lines import numbered_lines, opened
from allformer.errors import DataError
from allformer.json_file import HALF


@format("json", ".json", sniff=lambda head: head.lstrip().startswith("["), counts="record")
def read_array(path: Path, reading: Reading) -> Iterator[Item]:
    """The objects of `[{…}, {…}]`; the array is in memory as a whole while it is read."""
    try:
        with opened(path, reading) as file:
            value = _parsed(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, byte {error.start}: not UTF-8; convert it with iconv") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not JSON ({_said(error)}); if it has one object a line, say format=jsonl"
        ) from error
    if not isinstance(value, list):
        raise DataError(f"{path} holds {_kind(value)} where an array of objects is needed")
    for number, entry in enumerate(value, 1):
        yield number, _object(entry, f"{path}, record {number}")


@format("jsonl", ".jsonl", ".ndjson", ".json")
def read_lines(path: Path, reading: Reading) -> Iterator[Item]:
    """One object a line; blank lines are between records."""
    for number, line in numbered_lines(path, reading):
        if isinstance(line, DataError):
            yield number, line
        elif line and not line.isspace():
            yield number, _line(line, f"{path}, line {number}")


def _line(line: str, place: str) -> Record | DataError:
    try:
        return _object(_parsed(line), place)
    except (ValueError, RecursionError) as error:
        return DataError(
            f"{place}: not JSON ({_said(error)}); a line must be one whole object such as "
            '{"text": "…"}'
        )


def _parsed(text: str) -> Any:
    value = json.loads(text)
    if HALF.search(text):  # half a character, "\ud83d": no tokeniser takes it
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _object(value: Any, place: str) -> Record | DataError:
    if isinstance(value, dict):
        return value
    return DataError(f'{place}: {_kind(value)} where an object such as {{"text": "…"}} is needed')


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")


def _said(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half a character, a lone surrogate"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
