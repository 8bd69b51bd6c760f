"""Texts as rows of one length, filled up at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def fixed_rows(texts: Sequence[Sequence[int]], length: int, pad: int) -> tuple[Array, int]:
    """Ids as N × length, and how many texts were cut: `fixed_rows([[1, 7, 2]], 5, pad=0)`.

    Of a text that is too long the last token, which ends it, stays.
    """
    out = np.full((len(texts), length), pad, np.int64)
    cut = 0
    for row, ids in zip(out, texts, strict=True):
        if len(ids) > length:
            ids, cut = [*ids[: length - 1], ids[-1]], cut + 1
        row[: len(ids)] = ids
    return out, cut
