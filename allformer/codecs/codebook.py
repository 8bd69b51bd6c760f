"""A codebook of moving means of what its vectors stand for (van den Oord et al., 2017, A.1).

Legend: V codes, d their size, N vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer.core.precision import widen

_LITTLE = 1e-5  # Laplace's: no code is divided by nothing


def nearest(x: Tensor, book: Tensor) -> Tensor:
    """Of vectors … d the nearest row of a book V d, …; in at least fp32."""
    book = widen(book)
    x = x.to(book.dtype)
    apart = book.square().sum(-1) - 2 * (x @ book.t())  # |x|² is the same for all codes
    return apart.argmin(-1)


class Codebook(nn.Module):
    """`vectors` V d, and what they are the quotient of: `sums` V d and `counts` V.

    No gradient reaches it. All changes are in place and wait for nothing, so that a captured step
    may hold them.
    """

    vectors: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.empty(codes, dim))
        self.register_buffer("sums", torch.empty(codes, dim))
        self.register_buffer("counts", torch.empty(codes))

    def reset_parameters(self) -> None:
        """Small, and each as if it stood for itself: with restarts, the first batch fills it."""
        nn.init.uniform_(self.vectors, -1 / len(self.vectors), 1 / len(self.vectors))
        self.sums.copy_(self.vectors)
        self.counts.fill_(1.0)

    def nearest(self, x: Tensor) -> Tensor:
        """Of vectors … d the nearest code of each, …; in at least fp32."""
        return nearest(x, self.vectors)

    @torch.no_grad()
    def follow(
        self, rows: Tensor, ids: Tensor, decay: float, restart: float, keep: Tensor | None = None
    ) -> None:
        """Take in the vectors N d that were given the codes `ids` N; those with `keep` 0 count for
        nothing.

        A code that stands for fewer than `restart` vectors a batch (by the moving mean) is dead:
        it begins anew at one of these vectors, drawn at random (Dhariwal et al., 2020).
        """
        rows = rows.to(self.vectors.dtype)
        each = torch.ones_like(rows[:, 0]) if keep is None else keep.to(rows)
        count = torch.zeros_like(self.counts).index_add_(0, ids, each)
        total = torch.zeros_like(self.sums).index_add_(0, ids, rows * each[:, None])
        self.counts.lerp_(count, 1 - decay)
        self.sums.lerp_(total, 1 - decay)
        drawn = torch.randint(len(rows), (len(self.counts),), device=rows.device)
        dead = self.counts < restart
        self.sums.copy_(torch.where(dead[:, None], restart * rows[drawn], self.sums))
        self.counts.copy_(torch.where(dead, torch.full_like(self.counts, restart), self.counts))
        whole = self.counts.sum()
        smooth = (self.counts + _LITTLE) / (whole + len(self.counts) * _LITTLE) * whole
        self.vectors.copy_(self.sums / smooth[:, None])
