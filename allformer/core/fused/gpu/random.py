"""`fused.random.kept`, inside a kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def keys(seed, SITE: tl.constexpr):
    """The two words that key the mixer."""
    word = tl.load(seed)
    first = (word & 0xFFFFFFFF).to(tl.uint32)
    second = ((word >> 32) + SITE * 0x9E3779B9).to(tl.uint32)
    return first, second


@triton.jit
def keep(index, first, second, THRESHOLD: tl.constexpr):
    """True = kept, for places in the flattened tensor."""
    return _mix(_mix(index.to(tl.uint32) ^ first) ^ second) >= THRESHOLD
