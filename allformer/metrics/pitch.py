"""How high a voice is: `pitch(wave, 8000)`, in Hz.

Legend: S samples, F frames, W samples of a frame, L lags.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOW, HIGH = 70.0, 320.0  # Hz: of voices that speak
_FRAME = 0.05  # seconds
_LOUD = 0.25  # of the loudest frame's root mean square
_VOICED = 0.4  # how like itself, a moment later, a frame must be


def pitch(wave: Tensor, rate: int) -> float:
    """The median over loud frames that repeat themselves; NaN where there is none.

    >>> pitch(torch.sin(2 * math.pi * 120 * torch.arange(8000) / 8000), 8000)
    119.40298461914062
    """
    size = round(_FRAME * rate)
    if len(wave) < size:
        return math.nan
    frames = wave.float().unfold(0, size, size // 2)
    frames = frames - frames.mean(-1, keepdim=True)  # F W
    power = frames.square().mean(-1).sqrt()
    frames = frames[power > _LOUD * power.max()]
    if not len(frames):
        return math.nan
    spectrum = torch.fft.rfft(frames, 2 * size).abs().square()
    alike = torch.fft.irfft(spectrum)[:, :size]  # F L: as L grows, ever fewer samples overlap
    alike = alike / alike[:, :1] * (size / (size - torch.arange(size, device=wave.device)))
    lags = torch.arange(math.ceil(rate / HIGH), math.floor(rate / LOW) + 1, device=wave.device)
    best, _ = alike[:, lags].max(-1)
    # the first of several equal periods: twice a period fits as well
    early = (alike[:, lags] > 0.9 * best[:, None]).int().argmax(-1)
    peak = torch.stack([_climb(row, int(i)) for row, i in zip(alike[:, lags], early, strict=True)])
    found = rate / lags[peak][best > _VOICED].float()
    return float(found.median()) if len(found) else math.nan


def _climb(row: Tensor, at: int) -> Tensor:
    """From a slope to its top."""
    while at + 1 < len(row) and row[at + 1] > row[at]:
        at += 1
    return torch.tensor(at)
