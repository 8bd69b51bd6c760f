"""The scale-invariant ratio of signal to distortion, in decibels (Le Roux et al., 2019).

    si_sdr(decoded, recording)             # B: 20 dB is close, 0 dB as much noise as sound

Legend: B recordings, S samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.errors import ConfigError

_LITTLE = 1e-8  # of the energy of a second of full scale: silence gives a number


def si_sdr(estimate: Tensor, target: Tensor) -> Tensor:
    """Of waves … S, each against its own: 10 log₁₀ (|αs|² / |αs − ŝ|²), α = ŝ·s / |s|².

    Both are taken without their mean, so that neither loudness nor an offset counts.
    """
    if estimate.shape != target.shape:
        raise ConfigError(
            f"estimate={tuple(estimate.shape)} and target={tuple(target.shape)} must have one "
            f"shape; cut the longer one"
        )
    estimate, target = (x.double() - x.double().mean(-1, keepdim=True) for x in (estimate, target))
    energy = target.square().sum(-1, keepdim=True)
    part = (estimate * target).sum(-1, keepdim=True) / (energy + _LITTLE) * target
    signal, rest = part.square().sum(-1), (part - estimate).square().sum(-1)
    return 10 * torch.log10((signal + _LITTLE) / (rest + _LITTLE))
