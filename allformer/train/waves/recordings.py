"""Recordings at one rate, by number, and crops of them.

    recordings = Recordings(files, rate=8000)
    crops = drawn_crops(recordings, size=4000, seed=0, epoch=3)
    crops.waves(np.arange(8))                  # 8 × 4000, int16

Legend: R recordings, S samples of a crop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from allformer.sound.read import describe, read
from allformer.sound.write import as_int16

MOST_BYTES = 1 << 31  # what is kept in memory; more is read from its files again and again
Samples = npt.NDArray[np.int16]


class Recordings:
    """Files of sound, one channel each, as 16-bit samples at `rate`."""

    def __init__(
        self, files: Sequence[Path], rate: int, say: Callable[[str], None] | None = None
    ) -> None:
        self.files, self.rate = list(files), rate
        self._say, self._lock = say, threading.Lock()
        facts = [describe(file) for file in self.files]
        told = np.array([round(x.samples * rate / x.rate) for x in facts], dtype=np.int64)
        self.fits = 2 * int(told.sum()) <= MOST_BYTES
        # A compressed file's head may be a sample or two off; what was read is what counts.
        self.lengths = np.array([len(x) for x in self._whole]) if self.fits else told

    def __len__(self) -> int:
        return len(self.files)

    @property
    def seconds(self) -> float:
        """Of all together."""
        return float(self.lengths.sum()) / self.rate

    @cached_property
    def _whole(self) -> list[Samples]:
        if self._say is not None:
            self._say(f"reading {len(self):,} recordings at {self.rate:,} Hz")
        return [_samples(file, self.rate) for file in self.files]

    def cut(self, number: int, start: int, size: int) -> Samples:
        """`size` samples from `start` on; before the beginning and after the end is silence."""
        out = np.zeros(size, np.int16)
        first, last = max(0, start), min(int(self.lengths[number]), start + size)
        if first >= last:
            return out
        if self.fits:
            with self._lock:  # batches are made by another thread than the one that validates
                found = self._whole[number][first:last]
        else:
            found = _samples(self.files[number], self.rate, first, last - first)[: last - first]
        out[first - start : first - start + len(found)] = found
        return out

    def fingerprint(self) -> str:
        """Of the sounds; of more than are kept in memory, of their names and lengths."""
        seen = blake2b(digest_size=16)
        for i, file in enumerate(self.files):
            seen.update(f"{file.name}:{self.lengths[i]}@{self.rate}".encode())
            if self.fits:
                seen.update(self._whole[i].tobytes())
        return seen.hexdigest()


def _samples(file: Path, rate: int, first: int = 0, count: int | None = None) -> Samples:
    seconds = None if count is None else count / rate
    wave = read(file, rate=rate, start=first / rate, seconds=seconds)
    return as_int16(wave).numpy()


class Crops:
    """Crops of one length: of the recordings numbered `which`, from `starts` on."""

    def __init__(
        self, recordings: Recordings, which: npt.ArrayLike, starts: npt.ArrayLike, size: int
    ) -> None:
        self.recordings, self.size = recordings, size
        self.which, self.starts = np.asarray(which), np.asarray(starts)

    def __len__(self) -> int:
        return len(self.which)

    def waves(self, index: npt.NDArray[np.int64]) -> Samples:
        """Those numbered `index`, B S."""
        pairs = zip(self.which[index].tolist(), self.starts[index].tolist(), strict=True)
        return np.stack([self.recordings.cut(i, start, self.size) for i, start in pairs])


def drawn_crops(recordings: Recordings, size: int, seed: int, epoch: int) -> Crops:
    """As many crops of each recording as fit into it, one at least, begun at random, by (seed,
    epoch) alone. A recording that is shorter lies somewhere in its crop, in silence."""
    rest = recordings.lengths - size
    which = np.repeat(np.arange(len(recordings)), np.maximum(1, recordings.lengths // size))
    chance = np.random.default_rng([seed, epoch, size]).random(len(which))
    lowest, places = np.minimum(rest, 0)[which], np.abs(rest)[which] + 1
    return Crops(recordings, which, lowest + np.floor(chance * places).astype(np.int64), size)


def middle_crops(recordings: Recordings, size: int) -> Crops:
    """One of each, the same each time: its middle, or all of it and silence after."""
    rest = recordings.lengths - size
    return Crops(recordings, np.arange(len(recordings)), np.maximum(rest, 0) // 2, size)
