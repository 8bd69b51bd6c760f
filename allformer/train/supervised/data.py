"""Where labelled records come from: files of any format, and some of them held out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, TypeVar

from allformer.data.records import Pass, Record, Records, hold_out, open_records, open_splits
from allformer.data.records.records import Columns, said
from allformer.errors import DataError
from allformer.train.sections.section import Section, at_least

T = TypeVar("T")
_MOST_HELD_OUT = 1000
Column = str | int  # a name in the header, or where there is none a number from 0


@dataclass(frozen=True)
class RecordData(Section, section="data"):
    """Files with a record a line (csv, tsv, jsonl, parquet, …), and what their columns are called.

    `path` is a file, a pattern, or a directory with train and validation files; `corpus` a public
    one by name.
    """

    path: str | None = None
    corpus: str | None = None  # with `path`: the public corpus that lies in that folder
    validation: str | None = None  # left out: the directory's own, else held out of train
    hold_out: Annotated[int | None, at_least(1)] = None  # texts; left out: 5 %, at most 1,000
    format: str = "auto"
    header: bool | None = None  # of csv and tsv; left out: there is one, unless columns are numbers
    skip_bad: bool = False  # leave broken records out, and say how many, instead of stopping
    max_length: Annotated[int, at_least(4)] = 256  # tokens, special ones included
    cache: str | None = None  # a folder that keeps the tokens: read again, not made again


class Held(NamedTuple):
    """Training and validation records."""

    train: Iterable[Record]
    validation: Iterable[Record]


def open_labelled(
    data: RecordData,
    columns: Mapping[str, Column],
    corpus: Any = None,
    *,
    by: str | Callable[[Record], Columns] = "text",
    validation_columns: Mapping[str, Column] | None = None,
) -> Held:
    """The records that a data section names: `open_labelled(data, {"text": "sentence"})`.

    What is held out is chosen by the column `by`, or by those that `by` finds in a record; by all
    that records say where one text is in all of them.
    `corpus` takes their place: (train, validation), each a list of dicts by our own names.
    """
    if corpus is not None:
        if not isinstance(corpus, tuple) or len(corpus) != 2:
            raise DataError("corpus must be (train, validation), two lists of records (dicts)")
        return Held(*corpus)
    if data.path is None and data.corpus is None:
        raise DataError(
            "data.path is empty: there is nothing to train on; give a file, a pattern or a "
            "directory, as in --set data.path=reviews.csv"
        )
    options: dict[str, Any] = {
        "format": data.format, "header": data.header, "skip_bad": data.skip_bad,
    }  # fmt: skip
    if data.corpus is not None:
        from allformer.data.public_text import open_public

        if data.validation is not None:
            raise DataError(
                f"data.corpus={data.corpus!r} has its own validation; leave data.validation out"
            )
        found = open_public(data.corpus, data.path, columns=columns, **options)
        return Held(found.train or (), found.validation or ())
    assert data.path is not None
    if data.validation is not None:
        train = open_records(data.path, columns=columns, **options)
        others = validation_columns or columns
        return Held(train, open_records(data.validation, columns=others, **options))
    splits = open_splits(data.path, columns=columns, **options)
    if splits.train is None:
        raise DataError(f"data.path={data.path!r} has no training file; name it")
    if splits.validation is not None:
        return Held(splits.train, splits.validation)
    column = _differs(splits.train, by if isinstance(by, str) else _first(splits.train, by))
    count = data.hold_out or _share(splits.train, column)
    try:
        return Held(*hold_out(splits.train, count, column=column))
    except DataError as error:
        if str(error).startswith("count="):  # else a record is broken
            raise DataError(f"data.hold_out={count}: {error}") from None
        raise


def _differs(records: Records, column: Columns) -> Columns:
    """The columns, if they tell records apart: one question may be asked of every passage."""
    found = (said(record, column, 0) for record in records)
    first = next(found, None)
    return column if any(other != first for other in found) else ()


def _share(records: Records, column: Columns) -> int:
    """5 % of the different texts: of the records it might be all of the texts."""
    different = {said(record, column, 0) for record in records}
    return min(_MOST_HELD_OUT, max(1, len(different) // 20))


def _first(records: Records, by: Callable[[Record], Columns]) -> Columns:
    """What the first record is known by."""
    record = next(iter(records))
    try:
        return by(record)
    except DataError as error:
        raise DataError(f"{records.description}, its first record: {error}") from None


def fingerprint(records: Iterable[Record]) -> str:
    """Of records on disk by their files, of others by what they say."""
    if isinstance(records, Records):
        return records.fingerprint()
    seen = blake2b(digest_size=16)
    for record in records:
        seen.update(repr(sorted(record.items())).encode("utf-8", "surrogatepass"))
    return seen.hexdigest()


def read_each(records: Iterable[Record], read: Callable[[Record], T]) -> Iterator[T]:
    """What is read from each record; an error in one is told with its file and line."""
    reading = Pass(records) if isinstance(records, Records) else None
    for number, record in enumerate(records if reading is None else reading, 1):
        try:
            yield read(record)
        except DataError as error:
            place = f"record {number}" if reading is None else reading.place
            raise DataError(f"{place}: {error}") from None


def text_in(record: Record, column: str) -> str:
    """The text of a column, or an error that says what stands there instead."""
    value = record.get(column)
    if not isinstance(value, str):
        raise DataError(f"{column} is {value!r}; it must be a text")
    return value
