"""Residual vector quantisation: each codebook says what those before it have left.

Legend: B batch, d numbers a frame, F frames, Q codebooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.codecs.codebook import Codebook


class Book(Codebook):
    """A codebook, and whether it has begun (0 or 1): the files hold it."""

    begun: Tensor

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__(codes, dim)
        self.register_buffer("begun", torch.empty(1))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.begun.fill_(1.0)

    def look_up(self, ids: Tensor) -> Tensor:
        """… → … d"""
        return F.embedding(ids, self.vectors)


class Books(nn.Module):
    """`Books(Book(1024, 128) for _ in range(8))`, the one that says most first.

    `books.encode(z, 8)`: B d F → B 8 F; `books.decode(codes)`: B Q F → B d F.
    """

    def __init__(self, books: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(books)

    def encode(self, x: Tensor, count: int | None = None) -> Tensor:
        """The codes of the first `count` books (None: all)."""
        left, found = x.movedim(1, -1), []  # B F d
        for q in range(len(self.layers) if count is None else count):
            found.append(self.book(q).nearest(left))
            left = left - self.book(q).look_up(found[-1])
        return torch.stack(found, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """The sum of what the codes stand for; the first books', where not all are given."""
        parts = (self.book(q).look_up(ids) for q, ids in enumerate(codes.unbind(1)))
        return torch.stack(list(parts)).sum(0).movedim(-1, 1)

    def book(self, q: int) -> Any:
        """The q-th codebook: it has `nearest` and `look_up`."""
        return self.layers[q]
