"""Large tensors piece by piece, so that no second copy of them is ever whole."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

CHUNK = 8 << 20  # bytes


def chunks(view: Tensor) -> Iterator[tuple[int, Tensor]]:
    """A view in pieces of about `CHUNK` bytes: (elements before it, piece)."""
    view = view if view.dim() else view.view(1)
    row = view[0].numel() if len(view) else 0
    count = max(1, CHUNK // max(1, row * view.element_size()))
    for at in range(0, len(view), count):
        yield at * row, view[at : at + count]
