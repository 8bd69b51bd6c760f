"""The multi-resolution spectral distance: how far two sounds are apart for the ear, in decibels.

    spectral_distance(decoded, recording)  # B: 0 for the same sound; phase does not count

Legend: B recordings, S samples, F frequencies, N frames.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from allformer.errors import ConfigError

WINDOWS = (128, 256, 512, 1024, 2048)  # samples
DEPTH = 60.0  # decibels below the loudest of the target: what is quieter counts as that quiet


def spectral_distance(
    estimate: Tensor, target: Tensor, windows: tuple[int, ...] = WINDOWS
) -> Tensor:
    """Of waves … S the log-spectral distance, a mean over windows of several lengths.

    For each window: the root over frequencies of the mean squared difference of the two levels, a
    mean over frames. Levels more than `DEPTH` below the loudest one of the target are raised to
    there. Windows move by a quarter of their length; those longer than the sound are left out, but
    for the shortest.
    """
    if estimate.shape != target.shape:
        raise ConfigError(
            f"estimate={tuple(estimate.shape)} and target={tuple(target.shape)} must have one "
            f"shape; cut the longer one"
        )
    fit = [size for size in windows if size <= target.shape[-1]] or [min(windows)]
    each = [_distance(estimate.double(), target.double(), size) for size in fit]
    return torch.stack(each).mean(0)


def _distance(estimate: Tensor, target: Tensor, size: int) -> Tensor:
    wanted = magnitudes(target, size)
    floor = wanted.amax((-2, -1), keepdim=True) * 10 ** (-DEPTH / 20) + 1e-8
    apart = _level(magnitudes(estimate, size), floor) - _level(wanted, floor)
    return apart.square().mean(-2).sqrt().mean(-1)


def _level(x: Tensor, floor: Tensor) -> Tensor:
    return 20 * torch.log10(torch.maximum(x, floor))


@lru_cache(maxsize=64)
def _window(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once: it takes a dozen small kernels, and a training step asks for fourteen."""
    with torch.inference_mode(False):
        return torch.hann_window(size, dtype=dtype, device=device)


def magnitudes(wave: Tensor, size: int) -> Tensor:
    """Of waves … S, … F N: under a Hann window of `size` samples that moves by a quarter of it."""
    window = _window(size, wave.dtype, wave.device)
    flat = wave.reshape(-1, wave.shape[-1])
    found = torch.stft(
        flat, size, size // 4, window=window, pad_mode="constant", return_complex=True
    ).abs()
    return found.reshape(*wave.shape[:-1], *found.shape[-2:])
