"""PCM wav by the standard library: what is read where soundfile is not installed."""

from __future__ import annotations

import wave
from typing import Any, BinaryIO

import numpy as np

from allformer.errors import DataError

_HOW = "install what reads others: pip install allformer[sound]"


class PlainWave:
    """Answers as a `soundfile.SoundFile` does, as far as `read.py` asks."""

    def __init__(self, handle: BinaryIO, name: str) -> None:
        try:
            self.file = wave.Wave_read(handle)
        except (wave.Error, EOFError) as fault:
            raise DataError(f"{name} is no plain PCM wav file ({fault}); {_HOW}") from None
        self.samplerate, self.channels = self.file.getframerate(), self.file.getnchannels()
        self.frames, self.width = self.file.getnframes(), self.file.getsampwidth()
        if self.width not in (1, 2, 4):
            raise DataError(f"{name} has samples of {8 * self.width} bits; {_HOW}")

    def seek(self, sample: int) -> None:
        self.file.setpos(sample)

    def read(self, count: int, dtype: str, always_2d: bool) -> Any:
        """S C of fp32 in −1 … 1; a sample that the end of the file cuts is left out."""
        raw = self.file.readframes(count)
        raw = raw[: len(raw) // (self.width * self.channels) * self.width * self.channels]
        if self.width == 1:  # of 8 bits alone: without sign
            samples = (np.frombuffer(raw, "u1").astype("f4") - 128) / 128
        else:
            whole = np.frombuffer(raw, f"<i{self.width}")
            samples = (whole / 2.0 ** (8 * self.width - 1)).astype("f4")
        return samples.reshape(-1, self.channels)
