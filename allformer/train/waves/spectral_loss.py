"""How far two sounds are apart, for training: log-mel spectrograms at several scales, and the wave.

Legend: B crops, S samples, F frequencies, M mel bins, N frames.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from allformer.metrics.spectral import magnitudes
from allformer.sound.mel import mel_filters

WINDOWS = (32, 64, 128, 256, 512, 1024, 2048)  # samples
_FLOOR = 0.01  # how loud noise may be that counts as silence: 40 dB below a wave of 1
_HANN = 0.375  # the mean square of the window


def spectral_loss(estimate: Tensor, target: Tensor, rate: int) -> Tensor:
    """Of waves B S: B, the mean absolute difference of log₁₀ of the mel magnitudes, the mean over
    windows (Kumar et al., 2023, section 3.4; their scales and bins).

    The window of 32 samples has 5 bins, one twice as long twice as many; each moves by a quarter.
    Waves have a root mean square of about 1; what is 40 dB softer counts as that soft, as silence
    between words does: it is a recording's zeros that a logarithm would hear most of.
    """
    fit = [size for size in WINDOWS if size <= target.shape[-1]]
    each = []
    for size in fit:
        floor = _FLOOR * math.sqrt(_HANN * size)
        filters = _filters(size, rate, estimate.device, estimate.dtype)
        one, other = (
            torch.log10((filters @ magnitudes(x, size)).clamp_min(floor))
            for x in (estimate, target)
        )
        each.append((one - other).abs().flatten(1).mean(1))
    return torch.stack(each).mean(0)


@lru_cache(maxsize=32)
def _filters(size: int, rate: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """M F: triangles of height 1; a bin too narrow to meet a frequency is left out."""
    found = mel_filters(size * 5 // 32, rate=rate, size=size, top=rate / 2)
    found = found[found.amax(1) > 0]
    return (found / found.amax(1, keepdim=True)).to(device, dtype)
