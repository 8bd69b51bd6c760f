"""Pixels as numbers of colours, to the last bit as transformers' PIL backend makes them; and back.

Legend: N pixels, K colours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from allformer.images.prepare import Array

Colours = Sequence[Sequence[float]]


def nearest(values: Array, clusters: Colours) -> npt.NDArray[np.int64]:
    """The number of the nearest colour of each pixel, 3 H W → H·W, row after row.

    |a − b|² is written out as a² − 2ab + b², a² in the pixels' precision, for the same roundings.
    """
    pixels = np.ascontiguousarray(values.transpose(1, 2, 0)).reshape(-1, 3)  # N 3
    colours = np.array(clusters).T  # 3 K
    own = np.square(pixels).sum(axis=1)
    far = own[:, None] - 2 * np.matmul(pixels, colours) + np.square(colours).sum(axis=0)[None, :]
    numbers: npt.NDArray[np.int64] = np.argmin(far, axis=1)
    return numbers


def paint(numbers: Array, clusters: Colours, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Numbers of colours, B H·W, as images B H W 3: `paint(ids, settings.clusters, (32, 32))`."""
    colours = np.rint(127.5 * (np.array(clusters) + 1)).clip(0, 255).astype(np.uint8)
    return colours[numbers].reshape(-1, *size, 3)
