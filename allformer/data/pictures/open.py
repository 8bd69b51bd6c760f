"""`open_pictures(path)`: the splits of a set of pictures, by the reader that knows its layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from allformer.data.pictures.picture import Pictures
from allformer.errors import DataError, did_you_mean

SPLITS = ("train", "val", "test")
Read = Callable[[Path], Mapping[str, Pictures]]  # a directory or file → its splits
Knows = Callable[[Path], bool]
F = TypeVar("F", bound=Read)


@dataclass(frozen=True)
class _Reader:
    knows: Knows
    read: Read


FORMATS: dict[str, _Reader] = {}


def reads(name: str, knows: Knows) -> Callable[[F], F]:
    """Let data say `format: NAME`; `knows(path)` tells whether a path looks like it.

    @reads("folder", knows=has_folders_of_images)
    def read_folder(path: Path) -> dict[str, Pictures]: ...
    """

    def keep(read: F) -> F:
        FORMATS[name] = _Reader(knows, read)
        return read

    return keep


def open_pictures(path: str | Path, format: str = "auto") -> dict[str, Pictures]:
    """Splits by name, of `train`, `val` and `test` those that are there.

    >>> {name: len(part) for name, part in open_pictures("fashion-mnist").items()}
    {'train': 60000, 'test': 10000}
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} is not there; check data.path, or give --data DIR")
    found = dict(FORMATS[_which(path, format)].read(path))
    empty = [name for name, part in found.items() if not len(part)]
    if empty or not found:
        told = f"its {empty[0]} split is empty" if empty else "there is no split"
        raise DataError(f"{path} has no pictures to read: {told}; check the path")
    return found


def _which(path: Path, format: str) -> str:
    if format != "auto":
        if format not in FORMATS:
            hint = did_you_mean(format, FORMATS)
            raise DataError(
                f"data.format={format!r} is not known; {hint}there is auto, {', '.join(FORMATS)}"
            )
        return format
    for name, reader in FORMATS.items():
        if name != "folder" and reader.knows(path):
            return name
    if FORMATS["folder"].knows(path):  # the last one: others have folders of images too
        return "folder"
    raise DataError(
        f"{path} is no set of pictures that is known ({', '.join(FORMATS)}); give a folder with "
        f"one folder of images a class, or say data.format"
    )
