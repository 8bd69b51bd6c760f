"""A recording as log-mel frames, a window at a time: what is held does not grow with the file.

    sound = Frames(lambda: blocks("talk.mp3"), bins=80)
    sound.frames                             # of 10 ms
    sound.window(3000, 3000)                 # bins × 3000: the second half minute

Whisper's frames are scaled by the loudest of the whole recording, so it is read twice: once for
that, once for the windows. A recording of some minutes is kept instead.

Legend: M mel bins, N frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.sound.mel import FLOOR, HOP, SIZE, mel_power, scaled

KEEP = 60_000  # frames: ten minutes, 19 MB of 80 bins
TAIL = 3  # frames behind the last whole one that the last samples are heard in


class Frames:
    """Made of `blocks()`: the samples at 16 kHz from the start, piece by piece, each time anew."""

    def __init__(
        self,
        blocks: Callable[[], Iterable[Tensor]],
        bins: int = 80,
        *,
        device: torch.device | str = "cpu",
        keep: int = KEEP,
    ) -> None:
        self._blocks, self._bins, self._device = blocks, bins, device
        self._silence = torch.tensor(FLOOR, device=device).log10()
        peak, count = self._silence, 0
        kept: list[Tensor] = []
        for logs in self._stream():
            peak = torch.maximum(peak, logs.amax())
            count += logs.shape[1]
            kept = [*kept, logs] if count <= keep else []
        self._peak = peak
        self.frames = count - TAIL
        self._held = torch.cat(kept, 1) if kept else None
        self._first = 0  # the number of the first frame that is held
        self._coming: Iterator[Tensor] = iter(())

    def window(self, first: int, count: int) -> Tensor:
        """Frames M N from `first` on; behind the end there is silence."""
        if self._held is None or first < self._first:
            self._held, self._first = torch.empty(self._bins, 0, device=self._device), 0
            self._coming = self._stream()
        while self._first + self._held.shape[1] < first + count:
            logs = next(self._coming, None)
            if logs is None:
                break
            gone = max(0, min(first - self._first, self._held.shape[1]))
            self._held = torch.cat([self._held[:, gone:], logs], 1)
            self._first += gone
        begin = first - self._first
        logs = self._held[:, begin : begin + count].clone()
        logs = F.pad(logs, (0, count - logs.shape[1]), value=float(self._silence))
        return scaled(logs, self._peak)

    def _stream(self) -> Iterator[Tensor]:
        """log10 of the power in each bin, M N at a time; three frames hear the end."""
        half, rest, total = SIZE // 2, torch.empty(0, device=self._device), 0
        opened = False
        for block in chain(self._blocks(), (None,)):  # None: the end
            if block is None:
                # As many zeros as let the last samples into TAIL frames.
                padding = (total // HOP + TAIL) * HOP + half - total
                rest = F.pad(rest, (0, padding))
            else:
                total += len(block)
                rest = torch.cat([rest, block.to(self._device)])
            if not opened and len(rest) > half:
                rest = torch.cat([rest[1 : half + 1].flip(0), rest])  # mirrored at the start
                opened = True
            if opened and len(rest) >= SIZE + HOP:
                logs = mel_power(rest, self._bins).log10_()
                rest = rest[logs.shape[1] * HOP :]
                yield logs
