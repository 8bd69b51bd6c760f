"""Pieces of sound that overlap, as one.

Legend: B batch, C channels, T samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def faded(pieces: Sequence[Tensor], stride: int) -> Tensor:
    """Pieces, B C T each, that begin `stride` samples after one another, as one sound.

    Each is weighted by a triangle as long as the first piece, highest in its middle, and the sum by
    the weights': where two overlap, the one fades out as the other fades in.
    """
    first = pieces[0]
    long = first.shape[-1]
    ramp = torch.linspace(0, 1, long + 2, dtype=first.dtype, device=first.device)[1:-1]
    triangle = 0.5 - (ramp - 0.5).abs()
    total = max(i * stride + piece.shape[-1] for i, piece in enumerate(pieces))
    out, weights = first.new_zeros(*first.shape[:-1], total), first.new_zeros(total)
    for i, piece in enumerate(pieces):
        here, long = i * stride, piece.shape[-1]
        out[..., here : here + long] += triangle[:long] * piece
        weights[here : here + long] += triangle[:long]
    return out / weights
