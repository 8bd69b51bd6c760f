"""Windows over long rows: PyTorch's FlexAttention, which leaves out the blocks that nobody sees.

SDPA takes a window as a mask over all pairs, in memory and in work; here a query meets the blocks
of keys within its reach alone. Packed documents are one long row of which each part sees itself.

Legend: T queries and keys of a row, N packed tokens, H heads, D head size.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from allformer.core.fused import HALF, has_triton
from allformer.core.kernels.kernel import Case, Plan
from allformer.core.layout import Packed

if TYPE_CHECKING:
    from allformer.core.mixers.mixer import Scene

BLOCK = 128
LONG = 2048  # places in a row: for shorter ones a mask is cheap
SIZES = (16, 32, 64, 128, 256)


class Flex:
    """Half precision, no dropout, a window that is less than half of a long row."""

    ragged = False
    whole = False

    def fits(self, case: Case) -> bool:
        narrow = case.width >= LONG and 0 < case.window <= case.width // 2 and not case.drops
        half = case.dtype in HALF and case.size in SIZES
        on_gpu = case.device.type == "cuda" and has_triton()
        return case.asked == "fast" and narrow and half and on_gpu

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        assert plan.blocks is not None
        packed = plan.look is None
        if packed:  # N H D → 1 H N D
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        call: Any = flex_attention if torch.compiler.is_compiling() else _compiled()
        gqa = q.shape[1] != k.shape[1]
        out: Tensor = call(q, k, v, block_mask=plan.blocks, scale=scale, enable_gqa=gqa)
        return out[0].transpose(0, 1) if packed else out


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def window_blocks(scene: Scene, reach: tuple[int, int]) -> BlockMask:
    """Who may look at whom, block by block: within reach, in the same row, not ahead if causal."""
    left, right = reach
    right = min(right, 0) if scene.causal else right
    layout = scene.query
    if isinstance(layout, Packed):
        row, place = layout.cells // layout.total, layout.cells % layout.total

        def near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            far = place[k] - place[q]
            return (row[q] == row[k]) & (far >= -left) & (far <= right)

        return _blocks(layout.cells.shape[0], left, right, near, scene.device, alone=False)

    def inside(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k - q >= -left) & (k - q <= right)

    return _blocks(layout.width, left, right, inside, scene.device, alone=True)


def _blocks(
    length: int, left: int, right: int, may: Any, device: torch.device, alone: bool
) -> BlockMask:
    """Places of packed tokens are at least as far apart as their numbers: what is near by place is
    near by number. `alone`: one row, so that blocks wholly inside the window need no mask."""
    count = -(-length // BLOCK)
    number = torch.arange(count, device=device)
    far = (number[None, :] - number[:, None]) * BLOCK  # of the blocks' first tokens
    seen = (far + BLOCK - 1 >= -left) & (far - BLOCK + 1 <= right)
    whole = (far - BLOCK + 1 >= -left) & (far + BLOCK - 1 <= right)
    if not alone or length % BLOCK:
        whole = whole & False
    return BlockMask.from_kv_blocks(
        *_ordered(seen & ~whole), *_ordered(whole), BLOCK, may, (length, length)
    )


def _ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row of blocks sees, and which: those first."""
    order = torch.argsort(dense.int(), dim=-1, descending=True, stable=True).int()
    return dense.sum(-1).int()[None, None], order[None, None]
