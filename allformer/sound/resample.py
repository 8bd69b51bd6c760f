"""From one rate to another: by soxr, or by a windowed sinc where soxr is not installed."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.libraries import optional

LEAST, MOST = 1_000, 768_000  # Hz: what lies outside is a damaged header


def resample(wave: Tensor, rate: int, to: int) -> Tensor:
    """(… S) at `rate` → (… S′) at `to`.

    >>> resample(torch.zeros(8_000), 8_000, 16_000).shape
    torch.Size([16000])
    """
    if rate == to or not wave.numel():
        return wave
    flat = wave.reshape(-1, wave.shape[-1])
    resampler = make_resampler(rate, to, flat.shape[0])
    return resampler.push(flat, last=True).reshape(*wave.shape[:-1], -1).to(wave.device)


def make_resampler(rate: int, to: int, channels: int = 1) -> Resampler:
    """A `Resampler` for sound that comes in blocks, the best that is installed."""
    for name, value in (("rate", rate), ("to", to)):
        if not LEAST <= value <= MOST:
            raise DataError(f"{name}={value} Hz is not between {LEAST} and {MOST}; check the file")
    if rate == to:
        return Resampler()
    soxr = optional("soxr")
    return _Sinc(rate, to, channels) if soxr is None else _Soxr(soxr, rate, to, channels)


class Resampler:
    """`resampler.push(block, last=False)`: blocks C S in, blocks out; here of equal rates."""

    def push(self, block: Tensor, *, last: bool = False) -> Tensor:
        """What can be said so far; with `last` the rest too."""
        return block


class _Soxr(Resampler):
    def __init__(self, soxr: Any, rate: int, to: int, channels: int) -> None:
        self.stream = soxr.ResampleStream(rate, to, channels, dtype="float32", quality="HQ")

    def push(self, block: Tensor, *, last: bool = False) -> Tensor:
        samples = block.detach().to("cpu", torch.float32).T.contiguous().numpy()  # S C
        return torch.from_numpy(self.stream.resample_chunk(samples, last)).T


class _Sinc(Resampler):
    """Band-limited interpolation with one kernel for each phase of the reduced fraction to/rate.

    Of the output n · up + p (p < up), the kernel p lies over the input from n · down on.
    """

    def __init__(self, rate: int, to: int, channels: int) -> None:
        shared = math.gcd(rate, to)
        self.down, self.up = rate // shared, to // shared
        self.kernels, self.reach = _sinc_kernels(self.down, self.up)
        self.pending = torch.zeros(channels, self.reach)
        self.taken = self.given = 0

    def push(self, block: Tensor, *, last: bool = False) -> Tensor:
        block = block.detach().to("cpu", torch.float32)
        self.taken += block.shape[-1]
        parts = [self.pending, block]
        if last:
            parts.append(block.new_zeros(block.shape[0], self.reach + self.down))
        wave = torch.cat(parts, -1)
        steps = max(0, (wave.shape[-1] - self.kernels.shape[-1]) // self.down + 1)
        self.pending = wave[:, steps * self.down :]
        if not steps:
            return wave[:, :0]
        out = F.conv1d(wave[:, None], self.kernels, stride=self.down)  # C up n
        out = out.transpose(1, 2).reshape(wave.shape[0], -1)
        whole = round(self.taken * self.up / self.down)
        out = out[:, : whole - self.given] if last else out
        self.given += out.shape[-1]
        return out


_ZEROS = 64  # of the sinc on either side: the more, the steeper the edge of the band
_BAND = 0.95  # of the lower Nyquist frequency: what is passed


@lru_cache(maxsize=8)
def _sinc_kernels(down: int, up: int) -> tuple[Tensor, int]:
    """(up, 1, taps) and how far they reach to the left; Hann-windowed, of sum about 1."""
    band = min(1.0, up / down) * _BAND  # cycles per two input samples
    reach = math.ceil(_ZEROS / band)
    at = torch.arange(-reach, reach + down, dtype=torch.float64)
    away = at - torch.arange(up, dtype=torch.float64)[:, None] * down / up  # from output p
    window = (math.pi * away * band / _ZEROS / 2).clamp(-math.pi / 2, math.pi / 2).cos().square()
    return (torch.sinc(away * band) * window * band).float()[:, None], reach
