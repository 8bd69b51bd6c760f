"""idx files, packed or not: MNIST, Fashion-MNIST, EMNIST and others in their form.

    train-images-idx3-ubyte.gz  train-labels-idx1-ubyte.gz  t10k-images-…  t10k-labels-…

A file is two zeros, the type of a number (8: a byte), how many axes, their lengths in four bytes
each, the largest first, and the numbers. What the labels are called stands in `labels.txt`, one a
line, where there is one; those of Fashion-MNIST are known by its digest.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from allformer.data.pictures.open import reads
from allformer.data.pictures.picture import Array, InMemory, Pictures
from allformer.errors import DataError

BEGINNINGS = {"train": "train", "t10k": "test", "test": "test", "val": "val"}
MOST = 1 << 33  # bytes: beyond it a header lies
FASHION = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip
# The first training labels of Fashion-MNIST, by which it is told from MNIST.
_BEGINS = (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9)


def _find(path: Path, begin: str, what: str) -> Path | None:
    """`train-images-idx3-ubyte`, also with a dot before idx (as some copies have it), or packed."""
    found = [
        x
        for x in sorted(path.glob(f"*{begin}-{what}*"))
        if x.is_file() and "idx" in x.name and x.suffix != ".part"
    ]
    return found[0] if found else None


def _knows(path: Path) -> bool:
    return path.is_dir() and any(_find(path, begin, "images") for begin in BEGINNINGS)


@reads("idx", knows=_knows)
def read_idx(path: Path) -> dict[str, Pictures]:
    """The splits for which there are images and labels."""
    found: dict[str, tuple[Array, Array]] = {}
    for begin, name in BEGINNINGS.items():
        files = [_find(path, begin, what) for what in ("images", "labels")]
        if files[0] is None or name in found:
            continue
        if files[1] is None:
            raise DataError(f"{files[0]} has no {begin}-labels-idx1-ubyte beside it; add it")
        found[name] = _pair(files[0], files[1])
    if not found:
        raise DataError(f"{path} has no train-images-idx3-ubyte(.gz); check data.path")
    names = _names(path, found)
    return {name: InMemory(pixels, labels, names) for name, (pixels, labels) in found.items()}


def _pair(images: Path, labels: Path) -> tuple[Array, Array]:
    pixels, numbers = read_array(images), read_array(labels)
    if pixels.ndim not in (3, 4) or numbers.ndim != 1 or len(pixels) != len(numbers):
        raise DataError(
            f"{images.name} has {pixels.shape} numbers, {labels.name} {numbers.shape}; there must "
            f"be N × height × width (× channels) of the one and N of the other"
        )
    return (pixels[..., None] if pixels.ndim == 3 else pixels), numbers.astype(np.int64)


def read_array(path: Path) -> Array:
    """The numbers of one file: `read_array(Path("t10k-labels-idx1-ubyte.gz"))`."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); get it again") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != 8 or not 1 <= data[3] <= 4:
        raise DataError(f"{path} is no idx file of bytes: it begins with {data[:4]!r}; get another")
    axes = data[3]
    if len(data) < 4 + 4 * axes:
        raise DataError(f"{path} ends within its header; get it again")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    size = int(np.prod([int(x) for x in shape], dtype=object))
    if not 0 < size <= MOST or len(data) != 4 + 4 * axes + size:
        raise DataError(
            f"{path} says {' × '.join(map(str, shape))} bytes, but has {len(data) - 4 - 4 * axes}; "
            f"get it again"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _names(path: Path, found: dict[str, tuple[Array, Array]]) -> tuple[str, ...]:
    count = max(int(labels.max()) for _, labels in found.values()) + 1
    file = path / "labels.txt"
    if file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
        if len(names) < count:
            raise DataError(
                f"{file} has {len(names)} names, but there are {count} labels; add them"
            )
        return names
    first = next(iter(found.values()))[1][: len(_BEGINS)]
    if count == len(FASHION) and tuple(first.tolist()) == _BEGINS:
        return FASHION
    return tuple(map(str, range(count)))
