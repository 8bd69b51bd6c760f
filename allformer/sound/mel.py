"""The log-mel spectrogram that Whisper reads (Radford et al., 2022, section 2.2).

Letters: B rows, S samples, N frames, F frequencies, M mel bins.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.threads import side_by_side

RATE = 16_000
SIZE = 400  # samples under a window: 25 ms
HOP = 160  # samples from one frame to the next: 10 ms
TOP = 8_000.0  # Hz: where the last filter ends
FLOOR = 1e-10  # the least power
DECADES = 8.0  # of power below the loudest: what is quieter is raised to there

_AT_ONCE = 2048  # frames in one pass on a CPU: what they take stays in a core's cache
_AT_ONCE_GPU = 65_536
_ALONE = 512  # frames that are not worth a second thread


def log_mel(
    wave: Any,
    bins: int = 80,
    *,
    padding: int = 0,
    rate: int = RATE,
    size: int = SIZE,
    hop: int = HOP,
    top: float = TOP,
) -> Tensor:
    """(… S) → (… M N): log10 of the power in each mel bin, at most 8 decades deep, near ±1.

    >>> log_mel(read("talk.wav"), bins=80, padding=480_000).shape
    torch.Size([80, 4000])

    Equal to openai-whisper's `log_mel_spectrogram` and transformers' `WhisperFeatureExtractor`.
    Each row has its own loudest bin. `padding` zeros follow the sound. It is computed where the
    wave (a tensor, or numpy's array) lies, in fp32 (of fp64 in fp64), and has no gradient.
    """
    wave = torch.as_tensor(wave)
    frames = (wave.shape[-1] + padding) // hop  # the last is left out: 30 s are 3000
    wave = centred(wave, padding, size)[..., : (frames - 1) * hop + size]
    logs = mel_power(wave, bins, rate=rate, size=size, hop=hop, top=top, log=True)
    return scaled(logs, logs.amax((-2, -1), keepdim=True))


def scaled(logs: Tensor, peak: Tensor) -> Tensor:
    """`logs` of power, none more than 8 below the `peak`, moved to about −1 … 1.5; in place."""
    return torch.maximum(logs, peak - DECADES, out=logs).add_(4.0).div_(4.0)


def centred(wave: Tensor, padding: int = 0, size: int = SIZE) -> Tensor:
    """With half a window on either side, mirrored, so that frame n is centred at n · hop."""
    if wave.dtype not in (torch.float32, torch.float64):
        if not wave.is_floating_point():
            raise DataError(f"the wave is of {wave.dtype}; give floats in −1 … 1")
        wave = wave.float()
    wave = F.pad(wave, (0, padding))
    if wave.shape[-1] <= size // 2:
        raise DataError(
            f"the wave has {wave.shape[-1]} samples; a spectrogram takes more than {size // 2}, "
            f"or padding={size}"
        )
    flat = wave.reshape(1, -1, wave.shape[-1])
    return F.pad(flat, (size // 2, size // 2), mode="reflect").reshape(*wave.shape[:-1], -1)


@torch.no_grad()
def mel_power(
    wave: Tensor,
    bins: int = 80,
    *,
    rate: int = RATE,
    size: int = SIZE,
    hop: int = HOP,
    top: float = TOP,
    log: bool = False,
) -> Tensor:
    """(… S) → (… M N): the power in each bin of the frames in a wave that is `centred` already, or
    its log10."""
    framed = wave.unfold(-1, size, hop)  # … N size, a view
    window = _window(size, wave.device, wave.dtype)
    filters = _filters(bins, rate, size, top, wave.device, wave.dtype).T
    count, rows = framed.shape[-2], max(1, math.prod(wave.shape[:-1]))
    out = wave.new_empty(*wave.shape[:-1], bins, count)
    on_cpu = wave.device.type == "cpu"
    step = max(1, (_AT_ONCE if on_cpu else _AT_ONCE_GPU) // rows)

    def fill(begin: int, end: int) -> None:
        for first in range(begin, end, step):
            part = slice(first, min(first + step, end))
            wide = torch.view_as_real(torch.fft.rfft(framed[..., part, :] * window))
            real, imaginary = wide.unbind(-1)  # … N F
            power = torch.addcmul(real * real, imaginary, imaginary)
            mel = (power @ filters).clamp_(min=FLOOR)  # … N M
            out[..., part] = (mel.log10_() if log else mel).transpose(-1, -2)

    if on_cpu and rows * count > _ALONE:
        side_by_side(fill, count)
    else:
        fill(0, count)
    return out


def mel_filters(bins: int = 80, *, rate: int = RATE, size: int = SIZE, top: float = TOP) -> Tensor:
    """(M F): triangles on Slaney's mel scale, each of area 1; what turns power into bins.

    >>> mel_filters(80).shape
    torch.Size([80, 201])
    """
    if bins < 1:
        raise DataError(f"bins={bins} must be at least 1; Whisper has 80 or 128")
    frequencies = torch.linspace(0, rate / 2, size // 2 + 1, dtype=torch.float64)
    edges = _hertz(torch.linspace(0.0, _mel(top), bins + 2, dtype=torch.float64))
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)).float()


# Slaney's scale: linear up to 1 kHz (15 mel), then 27 mel to a factor of 6.4.
_HERTZ_A_MEL = 200 / 3
_KNEE = 15.0
_STEP = math.log(6.4) / 27


def _mel(hertz: float) -> float:
    if hertz < _KNEE * _HERTZ_A_MEL:
        return hertz / _HERTZ_A_MEL
    return _KNEE + math.log(hertz / (_KNEE * _HERTZ_A_MEL)) / _STEP


def _hertz(mel: Tensor) -> Tensor:
    above = _KNEE * _HERTZ_A_MEL * ((mel - _KNEE) * _STEP).exp()
    return torch.where(mel < _KNEE, mel * _HERTZ_A_MEL, above)


@lru_cache(maxsize=16)
def _filters(
    bins: int, rate: int, size: int, top: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    return mel_filters(bins, rate=rate, size=size, top=top).to(device, dtype)


@lru_cache(maxsize=16)
def _window(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.hann_window(size, dtype=dtype).to(device)
