"""Chunks in a ring by PyTorch's FlexAttention: no scores are kept, and none of other chunks made.

Which chunks meet is a matter of indices alone; who is hidden in them is asked inside the kernel, by
the places of sorted tokens. `core/chunks.py` has the plain form, which runs elsewhere.

Legend: B rows, H heads, N tokens in order (of all rounds), C chunks, D head size.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

from allformer.core.fused import HALF, has_triton
from allformer.core.kernels.flex import BLOCK, LONG, SIZES, _ordered, call_flex
from allformer.core.taps import listening

if TYPE_CHECKING:
    from allformer.core.chunks import Ring
    from allformer.core.mixers.mixer import Scene

ALONE = -1e5  # a query's score with itself, where it may not look at itself unless alone


def serves(scene: Scene, own: Ring, tokens: int, size: int, drops: bool) -> bool:
    """Whether the kernel is for this: long rows in half precision on a GPU, without dropout."""
    long = tokens >= LONG and tokens // own.size > own.before + own.after
    fast = scene.kernel == "fast" and not drops and not listening()
    on_gpu = scene.device.type == "cuda" and has_triton()
    return long and fast and on_gpu and scene.dtype in HALF and size in SIZES


def ring_blocks(own: Ring, tokens: int, device: torch.device) -> BlockMask:
    """Which blocks of `tokens` in order meet, because chunks in them do; without its mask."""
    count, chunks = -(-tokens // BLOCK), tokens // own.size
    number = torch.arange(count, device=device)
    first = number * BLOCK // own.size  # the chunks of a block
    last = ((number + 1) * BLOCK).clamp_max(tokens).sub(1) // own.size
    low, high = first - own.before, last + own.after  # that it looks at, in the ring
    seen = torch.zeros(count, count, dtype=torch.bool, device=device)
    for turn in (-chunks, 0, chunks):
        meets = (first[None] + turn <= high[:, None]) & (last[None] + turn >= low[:, None])
        seen |= meets
    none = torch.zeros_like(seen)
    blocks: BlockMask = BlockMask.from_kv_blocks(
        *_ordered(seen, number), *_ordered(none, number), BLOCK, None, (tokens, tokens)
    )
    return blocks


def attend_ring(
    q: Tensor, k: Tensor, v: Tensor, places: Tensor, own: Ring, blocks: BlockMask, itself: bool
) -> tuple[Tensor, Tensor]:
    """q, k, v B H N D in order, at `places` (B H N) → the context, and how much each has seen.

    Not `itself`: a query looks at its own place only where there is nothing else.
    """
    rows = q.shape[0]
    at = places.expand(*q.shape[:3])
    keep = None if own.keep is None else own.keep.expand(rows, -1)
    mask, score = _hiding(at, keep, own, q.shape[2] // own.size), None if itself else _alone(at)
    mine = copy.copy(blocks)
    mine.mask_mod = mask
    asked = AuxRequest(lse=True)
    out, aux = call_flex(q, k, v, mine, 1.0, score_mod=score, return_aux=asked)
    return out, aux.lse


def _hiding(at: Tensor, keep: Tensor | None, own: Ring, chunks: int) -> Any:
    """Flex's mask: True = may look. Everybody may look at its own place: no row is empty."""
    size, before, after, causal = own.size, own.before, own.after, own.causal

    def may(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        far = (k // size - q // size + before + chunks) % chunks  # 0 … before + after are near
        here, there = at[b, h, q], at[b, h, k]
        seen = here >= there if causal else here >= 0
        if keep is not None:
            seen = seen & keep[b, there]
        return (far <= before + after) & (seen | (here == there))

    return may


def _alone(at: Tensor) -> Any:
    def score(x: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(at[b, h, q] == at[b, h, k], ALONE, x)

    return score
