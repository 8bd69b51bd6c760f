"""Windows over long rows where Flex does not serve: chunk by chunk, without a mask over all pairs.

Packed rows stay end to end where that can be told without waiting for a device, and none has holes;
else they are laid on their grid, which is linear in its width here.

Legend: N packed tokens, H heads, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from allformer.core.banded import CHUNK, WIDE, banded
from allformer.core.kernels.kernel import Band, Case, Plan
from allformer.core.layout import Packed
from allformer.core.places import Places

if TYPE_CHECKING:
    from allformer.core.mixers.mixer import Scene

LONG = {"cpu": 1024}  # places in a row: for shorter ones a mask is cheap
LONGER = 8192  # on a GPU, which waits for each chunk to be launched
DEARER = 2  # than a pair of torch's fused attention, measured on a CPU


class Banded:
    """A window that with a chunk is less than half of a long row; anywhere but in a compiled graph,
    where all chunks would be written out."""

    ragged = False
    whole = False

    def fits(self, case: Case) -> bool:
        chunk = CHUNK.get(case.device.type, WIDE)
        pairs = case.window // case.dilation + chunk  # of each query
        cheaper = case.window > 0 and DEARER * pairs <= case.row
        long = case.row >= LONG.get(case.device.type, LONGER)
        return case.asked == "fast" and cheaper and long and not torch.compiler.is_compiling()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        band = plan.band
        assert band is not None
        rows = None if band.rows is None else band.rows[None]
        if rows is not None:  # N H D → 1 H N D
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = banded(
            q, k, v, band.left, band.right, scale=scale, keep=band.keep, dilation=band.dilation,
            bias=band.bias, rows=rows, dropout=dropout,
        )  # fmt: skip
        return out if rows is None else out[0].transpose(0, 1)


def band_of(scene: Scene, reach: tuple[int, int], dilation: int) -> Band:
    """What the layers of a stack with this window share."""
    left, right = reach
    right = 0 if scene.causal else right
    bias = None
    if scene.relation.adds:  # what is added depends on the distance: one query stands for all
        device = scene.device
        query = torch.zeros(1, 1, dtype=torch.long, device=device)
        key = torch.arange(-left, right + 1, dilation, device=device)[None]
        bias = scene.relation.bias(Places(query, key))
    rows = _end_to_end(scene.query) if isinstance(scene.query, Packed) else None
    keep = scene.places().real if rows is None else None
    return Band(left // dilation, right // dilation, dilation, keep, bias, rows)


def _end_to_end(layout: Packed) -> Tensor | None:
    """The row of each token, if in all rows tokens stand side by side."""
    if layout.cells.device.type != "cpu":
        return None
    row, step = layout.cells // layout.total, layout.cells.diff()
    apart = (step > 1) & (row[1:] == row[:-1])
    return None if bool(apart.any()) else row
