"""Parquet, with pyarrow (`pip install allformer[parquet]`): a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from allformer.data.records.format import Item, Reading, format
from allformer.errors import DataError

_ROWS = 1024  # of a batch


@format("parquet", ".parquet", ".pq", counts="row")
def read(path: Path, reading: Reading) -> Iterator[Item]:
    """Rows as Python values; only the columns that are asked for are read at all."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{path}: Parquet needs pyarrow; pip install 'allformer[parquet]'"
        ) from error
    size, number = path.stat().st_size, 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
            columns = [name for name in reading.options.wanted if name in there] or None
            total = file.metadata.num_rows
            reading.position = lambda: size * number // max(total, 1)
            for batch in file.iter_batches(_ROWS, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (pyarrow.ArrowException, OSError) as error:
        after = f" after row {number}" if number else ""
        said = str(error).splitlines()[0][:200]
        raise DataError(
            f"{path} cannot be read as Parquet{after} ({said}); fetch it again"
        ) from error
    if not number:
        raise DataError(f"{path} has no row in it; leave it out, or write it again")
