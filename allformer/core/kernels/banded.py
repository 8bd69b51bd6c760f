"""Windows over long rows where Flex does not serve: chunk by chunk, without a mask over all pairs.

Packed rows are laid on their grid, which is linear in its width here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from allformer.core.banded import CHUNK, WIDE, banded
from allformer.core.kernels.kernel import Band, Case, Plan
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
        return banded(
            q, k, v, band.left, band.right, scale=scale, keep=band.keep, dilation=band.dilation,
            bias=band.bias, dropout=dropout,
        )  # fmt: skip


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
    return Band(left // dilation, right // dilation, dilation, scene.places().real, bias)
