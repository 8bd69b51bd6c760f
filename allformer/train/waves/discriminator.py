"""Multi-scale STFT discriminators (Défossez et al., 2022, section 3.4): do the spectra sound real?

    told = SpectrumJudges(JudgeOptions())(wave)     # for each window: scores and what led to them

Legend: B crops, S samples, F frequencies, N frames, C channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.core.precision import cast

_SLOPE = 0.2
_WIDE, _LAST = (3, 9), (3, 3)  # kernels, frames × frequencies


class Told(NamedTuple):
    """Of one judge: the score of each place, and its inner layers."""

    scores: Tensor  # B 1 N F′
    inner: list[Tensor]  # B C N F″ each


class Normed(nn.Module):
    """A convolution whose weight is a direction `v` and a length `g` (Salimans & Kingma, 2016), in
    the dtype of its input."""

    decays = ("v",)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int],
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.stride, self.dilation = (1, stride), (dilation, 1)
        self.padding = ((kernel[0] - 1) // 2 * dilation, (kernel[1] - 1) // 2)
        self.v = nn.Parameter(torch.empty(outputs, inputs, *kernel))
        self.g = nn.Parameter(torch.empty(outputs, 1, 1, 1))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A variance of 1 behind the leaky rectifier (He et al., 2015)."""
        nn.init.normal_(self.v, std=math.sqrt(2 / (1 + _SLOPE**2) / self.v[0].numel()))
        with torch.no_grad():
            self.g.copy_(self.v.flatten(1).norm(dim=1).view_as(self.g))
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.g * self.v / self.v.flatten(1).norm(dim=1).view_as(self.g)
        return F.conv2d(
            x,
            cast(weight, x.dtype),
            cast(self.bias, x.dtype),
            self.stride,
            self.padding,
            self.dilation,
        )


class SpectrumJudge(nn.Module):
    """Of one window length: real and imaginary parts as two channels, then convolutions that look
    ever further in time (dilated by 1, 2, 4) and halve the frequencies."""

    window: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList(
            [
                Normed(2, width, _WIDE),
                *(Normed(width, width, _WIDE, stride=2, dilation=2**i) for i in range(3)),
                Normed(width, width, _LAST),
            ]
        )
        self.score = Normed(width, 1, _LAST)

    def forward(self, wave: Tensor, dtype: torch.dtype | None = None) -> Told:
        """Waves B S; the spectrum is taken in fp32, the layers compute in `dtype`."""
        found = torch.stft(
            wave, self.size, self.size // 4, window=self.window, normalized=True,
            pad_mode="constant", return_complex=True,
        )  # fmt: skip
        x = torch.stack([found.real, found.imag], 1).transpose(2, 3)  # B 2 N F
        # Channels innermost, which is how tensor cores read a convolution's input.
        x = x.to(dtype or x.dtype, memory_format=torch.channels_last)
        inner = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), _SLOPE)
            inner.append(x)
        return Told(self.score(x), inner)


class SpectrumJudges(nn.Module):
    """One judge for each window length."""

    def __init__(self, windows: tuple[int, ...] = (1024, 512, 256), width: int = 32) -> None:
        super().__init__()
        self.judges = nn.ModuleList(SpectrumJudge(size, width) for size in windows)

    def forward(self, wave: Tensor, dtype: torch.dtype | None = None) -> list[Told]:
        """Waves B S."""
        return [judge(wave, dtype) for judge in self.judges]
