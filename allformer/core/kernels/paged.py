"""One query in each row over keys and values in pages, which a kernel reads where they lie.

The plain form is to gather the pages first: `states/pages.py`. The kernel is `fused/gpu/paged.py`.

Legend: B rows, H heads, G key/value heads, D head size, P pages of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.fused import HALF, has_triton
from allformer.core.kernels.kernel import Case, Plan
from allformer.core.taps import listening_exactly

_LARGEST = 256  # a head: a tile of keys must fit into a multiprocessor


class PagedKernel:
    """`table` (B P) and `lengths` (B) say where the keys of each row are; its query stands at the
    last of them and sees `reach` before it."""

    ragged = False
    whole = False

    def __init__(self, table: Tensor, lengths: Tensor, page: int, reach: int | None) -> None:
        self.table, self.lengths, self.page, self.reach = table, lengths, page, reach

    def fits(self, case: Case) -> bool:
        return paged_serves(case)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        """q B H 1 D, k and v whole stores, slots G D → B H 1 D."""
        from allformer.core.fused.gpu.paged import paged_attention

        where = (self.table, self.lengths, self.page)
        return paged_attention(q[:, :, 0], k, v, *where, scale, self.reach)[:, :, None]


def paged_serves(case: Case) -> bool:
    """On a GPU with Triton, without dropout, and where nobody listens to keys and values."""
    kind = case.dtype in (*HALF, torch.float32) and case.size <= _LARGEST
    on_gpu = case.device.type == "cuda" and has_triton()
    return case.asked == "fast" and kind and on_gpu and not case.drops and not listening_exactly()
