"""Dynamic time warping: the cheapest way through a matrix from its first corner to its last.

    rows, columns = warp(cost)                 # both step by 0 or 1, and never stand still together
    smooth = median_filter(weights, 7)

Between tokens (rows) and frames of sound (columns) this is the order in which words were said
(Sakoe & Chiba, 1978; for attention: Radford et al., 2022, openai-whisper's word timestamps).

Legend: N rows, M columns.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import ConfigError

_BOTH, _ROW, _COLUMN = 0, 1, 2  # which index the last step moved


def warp(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices (rows, columns) of the cheapest path through `cost` N M.

    >>> rows, columns = warp(np.array([[0.0, 0.0, 9.0], [9.0, 9.0, 0.0]]))
    >>> rows.tolist(), columns.tolist()
    ([0, 0, 1], [0, 1, 2])
    """
    if cost.ndim != 2 or 0 in cost.shape:
        raise ConfigError(f"cost of shape {cost.shape} has no path; give rows × columns")
    return _walk_back(_steps(cost.astype(np.float32)))


def _steps(cost: np.ndarray) -> np.ndarray:
    """The best last step into each cell, N+1 M+1, with an empty row and column in front.

    Cells of one diagonal i + j = d depend on the two diagonals before it alone, so each diagonal is
    one operation on vectors; the sums of a diagonal are kept by their row i.
    """
    n, m = cost.shape
    steps = np.full((n + 1, m + 1), _COLUMN, dtype=np.int8)
    last, now = (np.full(n + 1, np.inf, dtype=np.float32) for _ in range(2))
    last[0] = 0  # of diagonal 0: the corner
    for d in range(2, n + m + 1):
        rows = np.arange(max(1, d - m), min(n, d - 1) + 1)
        both, row, column = last[rows - 1], now[rows - 1], now[rows]
        # A step is taken only if it is cheaper than both others: at a tie the column moves,
        # as in the reference.
        diagonal, down = (both < row) & (both < column), (row < both) & (row < column)
        step = np.where(diagonal, _BOTH, np.where(down, _ROW, _COLUMN))
        before = np.where(diagonal, both, np.where(down, row, column))
        steps[rows, d - rows] = step
        last.fill(np.inf)
        last[rows] = cost[rows - 1, d - rows - 1] + before
        last, now = now, last
    return steps


def _walk_back(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From the last cell to the first one; along an edge there is one way only."""
    i, j = steps.shape[0] - 1, steps.shape[1] - 1
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = _COLUMN if i == 0 else _ROW if j == 0 else steps[i, j]
        i -= step != _COLUMN
        j -= step != _ROW
    rows, columns = np.array(path[::-1]).T
    return rows, columns


def median_filter(x: Tensor, width: int) -> Tensor:
    """Each value of the last dimension becomes the median of the `width` around it.

    >>> median_filter(torch.tensor([0.0, 9.0, 0.0, 1.0, 2.0]), 3).tolist()
    [9.0, 0.0, 1.0, 1.0, 1.0]

    The ends are mirrored; what is too short to be mirrored stays as it is.
    """
    if width < 1 or width % 2 == 0:
        raise ConfigError(f"width={width} has no middle; give an odd number such as 7")
    around = width // 2
    if x.shape[-1] <= around:
        return x
    flat = x.reshape(1, -1, x.shape[-1])  # mirroring wants three dimensions
    windows = F.pad(flat, (around, around), mode="reflect").unfold(-1, width, 1)
    # Sorting a short window is faster than torch.median on a CPU.
    return torch.sort(windows).values[..., around].reshape(x.shape)
