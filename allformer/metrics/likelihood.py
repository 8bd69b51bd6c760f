"""How well a text was foreseen, from the sum of −ln p over its tokens."""

from __future__ import annotations

import math

from allformer.errors import DataError


def perplexity(nll: float, tokens: int) -> float:
    """`perplexity(nll=693.1, tokens=1000)` → 2.0; depends on how the text is cut into tokens.

    Infinite where e^(nll / tokens) is more than a float holds.
    """
    try:
        return math.exp(nll / _some(tokens, "perplexity", "tokens"))
    except OverflowError:
        return math.inf


def bits_per_byte(nll: float, size: int) -> float:
    """`bits_per_byte(nll=693.1, size=500)` → 2.0, however the text is cut; of its UTF-8 bytes."""
    return nll / math.log(2) / _some(size, "bits per byte", "bytes")


def _some(count: int, what: str, of: str) -> int:
    if count < 1:
        raise DataError(f"{what} of {count} {of} is not defined; give a text with some")
    return count
