"""Random numbers that are a function of (seed, site, index): a mask is made again, never stored.

    seed = draw(1, device)[0]                      # new in every step, also inside a CUDA graph
    keep = kept(seed, 3, x.shape, dropout=0.1)     # the same mask as `gpu/random.py` makes

torch's own generator (Philox, ten rounds for each number) takes longer than the memory traffic of
the layer that it thins out. Two rounds of a 32-bit mixer, keyed by the 64 bits of the seed, are
enough for dropout: every bit of index, site and seed changes half of the result's bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9  # 2³²/φ: sites are told apart
FIRST, SECOND = 0x7FEB352D, 0x846CA68B  # the multipliers of the mixer "lowbias32" (C. Wellons)


def draw(count: int, device: torch.device) -> Tensor:
    """Fresh seeds from torch's generator, `count` int64."""
    return torch.randint(1 << 62, (count,), device=device)


def threshold(dropout: float) -> int:
    """A number is dropped below this, of 2³²."""
    return min(_WORD, round(dropout * 2**32))


def kept(seed: Tensor, site: int, shape: tuple[int, ...], dropout: float) -> Tensor:
    """The mask of a tensor, True = kept; numbers are by the place in the flattened tensor."""
    return _words(seed, site, shape) >= threshold(dropout)


def numbers(seed: Tensor, site: int, shape: tuple[int, ...]) -> Tensor:
    """From 0 to 1, without 1, in fp64."""
    return _words(seed, site, shape).double() * 2**-32


def _words(seed: Tensor, site: int, shape: tuple[int, ...]) -> Tensor:
    """32 bits for each place."""
    count = torch.Size(shape).numel()
    index = torch.arange(count, dtype=torch.int64, device=seed.device) & _WORD
    first = seed & _WORD
    second = ((seed >> 32) + site * GOLDEN) & _WORD
    return _mix(_mix(index ^ first) ^ second).view(shape)


def _mix(x: Tensor) -> Tensor:
    x = x ^ (x >> 16)
    x = (x * FIRST) & _WORD
    x = x ^ (x >> 15)
    x = (x * SECOND) & _WORD
    return x ^ (x >> 16)


def thin(x: Tensor, seed: Tensor, site: int, dropout: float) -> Tensor:
    """Dropout with the mask of (seed, site)."""
    keep = kept(seed, site, tuple(x.shape), dropout)
    return torch.where(keep, x / (1 - dropout), 0.0).to(x.dtype)
