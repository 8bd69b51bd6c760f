"""`Spectrogram(blocks("hours.flac"))`: the log-mel of a sound that does not fit into memory.

Letters: S samples, N frames, M mel bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile

import numpy as np
import torch
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.mel import FLOOR, HOP, RATE, SIZE, centred, mel_power, scaled

_HELD = 64 * 2**20  # bytes in memory (about half an hour); what is longer lies on disk
_SILENCE = math.log10(FLOOR) + 1e-3  # of a bin; more than rounding
_BYTES = 4  # of a number
_TOGETHER = 120 * RATE  # samples


class Spectrogram:
    """What `log_mel` gives for the whole sound, window by window.

    >>> mel = Spectrogram(blocks("hours.flac"), bins=80)
    >>> mel.frames, mel[0:3000].shape
    (360000, torch.Size([80, 3000]))

    The sound is gone through once, since the loudest bin of all bounds every one from below.
    `frames` are those of the sound; `padding` samples of silence follow (openai-whisper's 30 s).
    """

    def __init__(
        self, waves: Iterable[Tensor], bins: int = 80, *, padding: int = 30 * RATE
    ) -> None:
        self.bins = bins
        self.samples = 0
        self._file = SpooledTemporaryFile(max_size=_HELD)  # noqa: SIM115  closes itself
        self._peak = torch.tensor(float("-inf"))
        self._count = 0
        self._total: int | None = None  # frames, known when the sound has ended
        for logs in mel_blocks(self._counted(waves, padding), bins, log=True):
            self._keep(logs)
        self.frames = self.samples // HOP

    @property
    def silent(self) -> bool:
        """Nothing at all is in it: no bin is above the least that is told apart from 0."""
        return float(self._peak) <= _SILENCE

    def __len__(self) -> int:
        """All frames, those of the silence behind the sound too."""
        return self._count

    def __getitem__(self, at: slice) -> Tensor:
        """(M, N) of frames first … last; beyond the end there are none."""
        first, last, step = at.indices(self._count)
        if step != 1:
            raise DataError(f"step={step} must be 1; take the frames and choose among them")
        count = max(0, last - first)
        if not count:
            return torch.empty(self.bins, 0)
        self._file.seek(first * self.bins * _BYTES)
        raw = bytearray(self._file.read(count * self.bins * _BYTES))
        logs = torch.frombuffer(raw, dtype=torch.float32).view(count, self.bins)
        return scaled(logs.T.contiguous(), self._peak)

    def _counted(self, waves: Iterable[Tensor], padding: int) -> Iterator[Tensor]:
        """Blocks, the silence last."""
        for wave in waves:
            self.samples += wave.shape[-1]
            yield wave
        self._total = (self.samples + padding) // HOP
        yield torch.zeros(padding)

    def _keep(self, logs: Tensor) -> None:
        if self._total is not None:
            logs = logs[:, : self._total - self._count]
        if not logs.shape[-1]:
            return
        self._count += logs.shape[-1]
        frames = logs.numpy()  # numpy moves numbers in this thread alone, and waits for no other
        self._peak = torch.maximum(self._peak, torch.tensor(float(frames.max())))
        self._file.write(np.ascontiguousarray(frames.T).tobytes())


def mel_blocks(waves: Iterable[Tensor], bins: int = 80, *, log: bool = False) -> Iterator[Tensor]:
    """(M N) of `mel_power` for blocks of a wave, one after another: the frames of the whole, and
    the last one that `log_mel` leaves out."""
    half = SIZE // 2
    pending, begun = torch.empty(0), False
    for wave in _joined(waves):
        pending = _cat([pending, wave])
        if not begun and pending.shape[0] > half:
            pending, begun = centred(pending)[:-half], True
        count = (pending.shape[0] - SIZE) // HOP + 1 if begun else 0
        if count > 0:
            yield mel_power(pending[: (count - 1) * HOP + SIZE], bins, log=log)
            pending = pending[count * HOP :]
    pending = torch.cat([pending, pending[-half - 1 : -1].flip(0)]) if begun else centred(pending)
    yield mel_power(pending, bins, log=log)


def _joined(waves: Iterable[Tensor]) -> Iterator[Tensor]:
    """Short blocks together: a few long operations are faster than many short ones."""
    parts: list[Tensor] = []
    for wave in waves:
        parts.append(wave)
        if sum(map(len, parts)) >= _TOGETHER:
            yield _cat(parts)
            parts = []
    if parts:
        yield _cat(parts)


def _cat(parts: list[Tensor]) -> Tensor:
    return torch.from_numpy(np.concatenate([part.numpy() for part in parts]))
