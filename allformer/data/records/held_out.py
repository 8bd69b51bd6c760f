"""Keep a few records apart from training, chosen by what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from allformer.data.parallel import smallest
from allformer.data.records.records import Columns, Half, Records, Skipped, said
from allformer.errors import DataError


def hold_out(
    records: Records, count: int, seed: int = 0, *, column: Columns | None = None
) -> tuple[Records, Records]:
    """Split records into (train, validation), `count` different texts in the latter.

    >>> train, validation = hold_out(open_records("reviews.csv"), 1000, column="text")

    The choice depends on the texts of `column` (by itself "text", else the first; several count
    together, and () is all that a record says) and the seed, not on the order; a record of another
    form counts by all that it says. All records of one text
    fall on the same side, so validation may hold a few more than `count`, and nothing that is
    validated on is trained on. Reads all records once here and keeps only `count` hashes.
    """
    if records.half is not None:
        raise DataError("these records are one side of hold_out already; split the whole instead")
    if count < 1:
        raise DataError(f"count={count} must be at least 1 record to hold out")

    def hashes() -> Iterator[int]:
        nonlocal column
        for number, record in enumerate(records):
            if column is None:
                column = "text" if "text" in record else next(iter(record))
            if not number and isinstance(column, str) and column not in record:
                raise DataError(f"column={column!r} is not there; there is {', '.join(record)}")
            yield said(record, column, seed)

    limit, different = smallest(hashes(), count)
    if limit is None or column is None:
        raise DataError(
            f"count={count} leaves nothing to train on: of {_told(column)} there are "
            f"{different} different ones; hold out fewer, or give held-out data of its own "
            f"(data.validation)"
        )
    train, validation = (
        replace(records, half=Half(column, limit, seed, inside), skipped=Skipped())
        for inside in (False, True)
    )
    return train, validation


def _told(column: Columns | None) -> str:
    return column if isinstance(column, str) else " and ".join(column or ("records",))
