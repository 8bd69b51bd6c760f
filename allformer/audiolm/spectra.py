"""The codebooks of a spectral codec, fitted to sound: k-means, and k-means of what is left.

codec = fit_codec(Spectral(rate=8000, levels=3), waves, seed=0)      # waves: S samples at 8 kHz
save(codec, "voices-codec", family="allformer")

Legend: S samples, N frames, d bands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from allformer.audiolm.kmeans import fit_clusters, nearest
from allformer.codecs.sound.spectral import SpectralModel
from allformer.codecs.sound.spectral_config import Spectral
from allformer.core.model import build
from allformer.errors import DataError


@torch.no_grad()
def fit_codec(
    tree: Spectral, waves: Iterable[Tensor], *, steps: int = 20, seed: int = 0
) -> SpectralModel:
    """A codec whose codebooks stand for the spectra of these sounds; each fits what those before it
    have left, in so many `steps` of k-means."""
    codec: Any = build(tree, seed=seed)
    parts = [codec.compressed(codec.checked(wave[None, None]))[0].T for wave in waves if len(wave)]
    if not parts:
        raise DataError("there is no sound to fit a codec to; give one recording at least")
    left = torch.cat(parts)  # N d
    codec.mean.copy_(left.mean(0))
    left = left - codec.mean
    for q in range(tree.levels):
        centres = fit_clusters(left, tree.codes, steps=steps, seed=seed + q).centres
        codes, book = nearest(left, centres), codec.quantiser.book(q)
        book.vectors.copy_(centres)
        book.counts.copy_(codes.bincount(minlength=tree.codes).clamp(min=1))
        book.sums.copy_(centres * book.counts[:, None])
        left = left - centres[codes]
    found: SpectralModel = codec.eval()
    return found
