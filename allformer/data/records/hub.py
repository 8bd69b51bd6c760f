"""Hugging Face `datasets`, when it is installed: `hf:NAME[:CONFIG][:SPLIT]`, or a saved folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allformer.data.records.format import Item, Reading, format
from allformer.errors import DataError

PREFIX = "hf:"
SPLITS = ("train", "validation", "test", "unsupervised")  # the usual names
_SAVED = ("dataset_info.json", "state.json")  # what `save_to_disk` leaves of one split


def is_saved(folder: Path) -> bool:
    """Whether a folder is a data set that `save_to_disk` wrote; several splits have one each."""
    return all((folder / name).is_file() for name in _SAVED)


def split_name(name: str) -> tuple[str, str | None, str]:
    """`split_name("hf:glue:sst2:validation")` → ("glue", "sst2", "validation").

    One part after the name is a split if it is called like one, else a configuration.
    """
    whole, *rest = name.removeprefix(PREFIX).split(":")
    config, split = None, "train"
    if len(rest) == 1:
        config, split = (None, rest[0]) if rest[0].split("[")[0] in SPLITS else (rest[0], split)
    elif len(rest) == 2:
        config, split = rest
    if not whole or len(rest) > 2 or "" in rest:
        raise DataError(f"{name}: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    return whole, config, split


def _identity(path: Path) -> str:
    return str(_loaded(path)._fingerprint)  # their own hash of the table's content


@format("hf", counts="row", identity=_identity)
def read(path: Path, reading: Reading) -> Iterator[Item]:
    """Rows as Python values, from the memory-mapped Arrow files that `datasets` keeps."""
    data = _loaded(path)
    wanted = [name for name in reading.options.wanted if name in data.column_names]
    if wanted:
        data = data.select_columns(wanted)
    for number, record in enumerate(data, 1):
        yield number, dict(record)


def _loaded(path: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{path}: this needs Hugging Face datasets; pip install datasets"
        ) from error
    name = str(path)
    try:
        if not name.startswith(PREFIX):
            return datasets.load_from_disk(name)
        whole, config, split = split_name(name)
        return datasets.load_dataset(whole, config, split=split)
    except DataError:
        raise
    except Exception as error:  # theirs are of many kinds: network, names, code that is refused
        said = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise DataError(f"{name} cannot be loaded by datasets: {said}") from error
