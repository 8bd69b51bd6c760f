"""CIFAR-10 and CIFAR-100 in each of their forms: Python's, the binary one, sheets of PNG.

    data_batch_1 … data_batch_5, test_batch, batches.meta         Python (CIFAR-100: train, test)
    data_batch_1.bin …, test_batch.bin, batches.meta.txt          binary (train.bin, test.bin)
    data_batch_1.png …, test_batch.png, train_lables.json         one row of a sheet an image

A file of Python's is a pickle, which could run anything: it is read by a reader that knows arrays,
lists and texts, and nothing else.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.open import reads
from allformer.data.pictures.picture import Array, InMemory, Pictures
from allformer.errors import DataError
from allformer.images.pillow import pillow

SIDE = 32
BYTES = 3 * SIDE * SIDE  # red, green, blue, each in reading order
TEN = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_FOLDERS = (
    "cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python", "cifar-100-binary",
)  # fmt: skip
_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
}  # fmt: skip
_MOST_SHEET = 1 << 27  # pixels


class _Arrays(pickle.Unpickler):
    """A pickle of arrays, lists and texts; whatever else it names is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS:
            return super().find_class(module.replace("numpy._core", "numpy.core"), name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpickled(path: Path) -> dict[str, Any]:
    try:
        with np.errstate(all="ignore"):
            raw = _Arrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in raw.items()}
    except Exception as error:  # whatever pickle says of such bytes
        raise DataError(f"{path} is none of CIFAR's files ({error}); get it again") from None


def _home(path: Path) -> Path:
    """The folder itself, or the one in it that the archive unpacks to."""
    return next((path / name for name in _FOLDERS if (path / name).is_dir()), path)


def _form(path: Path) -> str | None:
    for form, names in _FORMS.items():
        if any(all((path / name).is_file() for name in some) for some in names):
            return form
    return None


_FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "python": (("data_batch_1", "test_batch"), ("train", "test", "meta")),
    "binary": (("data_batch_1.bin", "test_batch.bin"), ("train.bin", "test.bin")),
    "sheets": (("data_batch_1.png", "test_batch.png"),),
}


def _knows(path: Path) -> bool:
    return path.is_dir() and _form(_home(path)) is not None


@reads("cifar", knows=_knows)
def read_cifar(path: Path) -> dict[str, Pictures]:
    """train and test."""
    home = _home(path)
    form = _form(home)
    if form is None:
        raise DataError(f"{path} has none of CIFAR's files (data_batch_1 …); check data.path")
    splits, names = {"python": _python, "binary": _binary, "sheets": _sheets}[form](home)
    found: dict[str, Pictures] = {}
    for name, (flat, labels) in splits.items():
        numbers = np.asarray(labels, dtype=np.int64)
        if flat.ndim != 2 or flat.shape[1] != BYTES or len(flat) != len(numbers):
            raise DataError(
                f"{home}: {name} has {flat.shape} bytes and {len(numbers)} labels; an image has "
                f"{BYTES} and one; get it again"
            )
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
            raise DataError(f"{home}: {name} has labels beyond {len(names) - 1}; get it again")
        pixels = flat.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)  # N H W C
        found[name] = InMemory(np.ascontiguousarray(pixels), numbers, names)
    return found


Splits = dict[str, tuple[Array, Any]]


def _python(home: Path) -> tuple[Splits, tuple[str, ...]]:
    hundred = (home / "meta").is_file()
    files = {"train": ("train",), "test": ("test",)} if hundred else _ten("")
    key = "fine_labels" if hundred else "labels"
    splits: Splits = {}
    for split, names in files.items():
        raw = [_unpickled(home / name) for name in names if (home / name).is_file()]
        if any("data" not in one or key not in one for one in raw):
            raise DataError(f"{home}: a file of {split} has no data and {key}; get it again")
        data = [np.asarray(one["data"], dtype=np.uint8) for one in raw]
        splits[split] = np.concatenate(data), [x for one in raw for x in one[key]]
    meta = home / ("meta" if hundred else "batches.meta")
    if not meta.is_file():
        return splits, TEN
    said = _unpickled(meta).get("fine_label_names" if hundred else "label_names", TEN)
    return splits, tuple(x.decode() if isinstance(x, bytes) else str(x) for x in said)


def _ten(ending: str) -> dict[str, tuple[str, ...]]:
    return {
        "train": tuple(name + ending for name in BATCHES),
        "test": ("test_batch" + ending,),
    }


def _binary(home: Path) -> tuple[Splits, tuple[str, ...]]:
    hundred = (home / "train.bin").is_file()
    files = {"train": ("train.bin",), "test": ("test.bin",)} if hundred else _ten(".bin")
    before = 2 if hundred else 1  # CIFAR-100 has a coarse label before the fine one
    splits: Splits = {}
    for split, names in files.items():
        data = b"".join((home / name).read_bytes() for name in names if (home / name).is_file())
        if len(data) % (before + BYTES):
            raise DataError(f"{home}: {split} ends within an image; get it again")
        rows = np.frombuffer(data, np.uint8).reshape(-1, before + BYTES)
        splits[split] = rows[:, before:], rows[:, before - 1]
    named = home / ("fine_label_names.txt" if hundred else "batches.meta.txt")
    lines = named.read_text(encoding="utf-8").split() if named.is_file() else []
    usual = tuple(map(str, range(100))) if hundred else TEN
    return splits, tuple(lines) or usual


def _sheets(home: Path) -> tuple[Splits, tuple[str, ...]]:
    splits: Splits = {}
    for split, names in _ten(".png").items():
        sheets = [_sheet(home / name) for name in names if (home / name).is_file()]
        splits[split] = np.concatenate(sheets), _told(home, split)
    return splits, TEN


def _sheet(path: Path) -> Array:
    """N images, each a row of 1,024 pixels, as N 3·1024 by channel."""
    library = pillow()
    try:
        with library.open(path, formats=["PNG"]) as image:
            width, height = image.size
            if width != SIDE * SIDE or width * height > _MOST_SHEET:
                raise DataError(f"{path} is {width} × {height}; a row must be 1,024 pixels wide")
            pixels = np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # each format has its own errors
        raise DataError(f"{path} is damaged ({error}); get it again") from None
    return pixels.transpose(0, 2, 1).reshape(height, BYTES)


def _told(home: Path, split: str) -> Any:
    for name in (f"{split}_labels.json", f"{split}_lables.json"):
        if (home / name).is_file():
            try:
                return json.loads((home / name).read_text(encoding="utf-8"))
            except ValueError:
                raise DataError(f"{home / name} is no JSON; get it again") from None
    raise DataError(f"{home} has no {split}_labels.json, which says what its images show; add it")
