"""Recordings and the ids of their texts, as an objective reads them.

Letters: B clips, S samples, W ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from allformer.data.recordings import Recording
from allformer.sound.read import read
from allformer.sound.write import as_int16
from allformer.train.batch import Array

_HELD = 1 << 30  # bytes of sound that are kept in memory: nine hours at 16 kHz


@dataclass
class Clips:
    """`clips.waves(index)`: B S of 16-bit samples at `rate`, silence behind the shorter ones."""

    recordings: Sequence[Recording]
    ids: list[list[int]]
    rate: int
    samples: int  # of the longest
    width: int  # ids of the longest
    _kept: dict[int, npt.NDArray[np.int16]] = field(default_factory=dict, repr=False)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self.recordings)

    @property
    def texts(self) -> list[str]:
        """What is said in each."""
        return [recording.text for recording in self.recordings]

    def waves(self, index: Array) -> Array:
        """The clips numbered `index`."""
        out = np.zeros((len(index), self.samples), np.int16)
        for row, number in enumerate(index.tolist()):
            wave = self.wave(number)[: self.samples]
            out[row, : len(wave)] = wave
        return out

    def wave(self, number: int) -> npt.NDArray[np.int16]:
        """One clip; read once, as long as there is room."""
        if number in self._kept:
            return self._kept[number]
        wave = as_int16(read(self.recordings[number].path, rate=self.rate)).numpy()
        if self._bytes + wave.nbytes <= _HELD:
            self._kept[number] = wave
            self._bytes += wave.nbytes
        return wave

    def rows(self, index: Array) -> Array:
        """B W: the ids of their texts, −1 behind the shorter ones."""
        out = np.full((len(index), self.width), -1, np.int64)
        for row, number in enumerate(index.tolist()):
            ids = self.ids[number]
            out[row, : len(ids)] = ids
        return out
