"""Small pictures for tests, one half of each bright; written as idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

SIDE = 8


def halves(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """N 8 8 of bytes, of which one half is bright: 0 left, 1 right, 2 above, 3 below."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 4, count)
    pixels = draw.integers(0, 90, (count, SIDE, SIDE))
    for image, label in zip(pixels, labels, strict=True):
        part = [image[:, :4], image[:, 4:], image[:4], image[4:]][label]
        part += 120
    return pixels.astype(np.uint8), labels.astype(np.uint8)


def write_array(path: Path, values: np.ndarray) -> None:
    """One idx file, packed if its name ends so."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    data = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def write_idx(path: Path, train: int = 200, test: int = 40) -> Path:
    """A directory as MNIST's."""
    path.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": train, "t10k": test}.items()):
        pixels, labels = halves(count, seed)
        write_array(path / f"{name}-images-idx3-ubyte.gz", pixels)
        write_array(path / f"{name}-labels-idx1-ubyte", labels)
    return path
