"""Chunks in a ring by PyTorch's FlexAttention: no scores are kept, and none of other chunks made.

Which chunks meet is a matter of indices alone; who is hidden in them is asked inside the kernel, by
the places of sorted tokens. `core/chunks.py` has the plain form, which runs elsewhere.

Legend: B rows, H heads, N tokens in order (of all rounds), C chunks, D head size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, noop_mask

from allformer.core.fused import HALF, has_triton
from allformer.core.kernels.flex import BLOCK, LONG, SIZES, call_flex, ordered
from allformer.core.taps import listening

if TYPE_CHECKING:
    from allformer.core.chunks import Ring
    from allformer.core.mixers.mixer import Scene


def serves(scene: Scene, own: Ring, tokens: int, size: int, drops: bool) -> bool:
    """Whether the kernel is for this: long rows in half precision on a GPU, without dropout."""
    long = tokens >= LONG and tokens // own.size > own.before + own.after
    fast = scene.kernel == "fast" and not drops and not listening()
    on_gpu = scene.device.type == "cuda" and has_triton()
    return long and fast and on_gpu and scene.dtype in HALF and size in SIZES


def ring_blocks(own: Ring, tokens: int, device: torch.device) -> BlockMask:
    """Which blocks of `tokens` in order meet, because chunks in them do; without its mask.

    Only blocks that may be near are listed: nothing is as large as all pairs of them.
    """
    return _ring_blocks(own.size, (own.before, own.after), tokens, str(device))


@lru_cache(maxsize=64)
def _ring_blocks(size: int, reach: tuple[int, int], tokens: int, on: str) -> BlockMask:
    chunks, device = tokens // size, torch.device(on)

    def first(block: Tensor) -> Tensor:  # chunk of a block
        return block * BLOCK // size

    def last(block: Tensor) -> Tensor:
        return ((block + 1) * BLOCK).clamp_max(tokens).sub(1) // size

    def meet(q: Tensor, k: Tensor) -> Tensor:
        low, high = first(q) - reach[0], last(q) + reach[1]  # chunks that are looked at
        turns = [(first(k) + n <= high) & (last(k) + n >= low) for n in (-chunks, 0, chunks)]
        return turns[0] | turns[1] | turns[2]

    count = -(-tokens // BLOCK)
    # a chunk may begin almost one chunk before the block that it reaches into
    before, after = (min(-(-(n + 1) * size // BLOCK) + 1, count) for n in reach)
    kv = _near(count, before, after, meet, device)
    q = _near(count, after, before, lambda k, q: meet(q, k), device)
    blocks: BlockMask = BlockMask(
        seq_lengths=(tokens, tokens), kv_num_blocks=kv[0], kv_indices=kv[1],
        full_kv_num_blocks=None, full_kv_indices=None, q_num_blocks=q[0], q_indices=q[1],
        full_q_num_blocks=None, full_q_indices=None, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=noop_mask,
    )  # fmt: skip
    return blocks


def _near(
    count: int, before: int, after: int, meet: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How many blocks each block meets and which, those first: 1 1 blocks, 1 1 blocks M."""
    block = torch.arange(count, device=device)[:, None]
    near = block + torch.arange(-before, after + 1, device=device)
    ends = torch.cat([torch.arange(min(after + 1, count)), torch.arange(count)[-before - 1 :]])
    ends = torch.unique(ends).to(device).expand(count, -1)  # where the ring closes
    apart = (ends < block - before) | (ends > block + after)  # not listed already
    other = torch.cat([near, ends], 1)
    listed = torch.cat([(near >= 0) & (near < count), apart], 1)
    other = other.clamp(0, count - 1)
    return ordered(listed & meet(block, other), other)


def attend_ring(
    q: Tensor, k: Tensor, v: Tensor, places: Tensor, own: Ring, blocks: BlockMask, itself: bool,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
    out, aux = call_flex(q, k, v, mine, scale, score_mod=score, return_aux=asked)
    return out, aux.lse


def _hiding(at: Tensor, keep: Tensor | None, own: Ring, chunks: int) -> Any:
    """Flex's mask: True = may look. Everybody may look at its own place: no row is empty."""
    size, causal = own.size, own.causal
    # A kernel for any shape takes numbers, but no sums of them.
    first, reach = own.before + chunks, own.before + own.after

    def may(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        far = (k // size - q // size + first) % chunks  # 0 … reach are near
        here, there = at[b, h, q], at[b, h, k]
        seen = here >= there if causal else here >= 0
        if keep is not None:
            seen = seen & keep[b, there]
        return (far <= reach) & (seen | (here == there))

    return may


def _alone(at: Tensor) -> Any:
    """A query's score with itself, where it may not look at itself unless alone. Written out: a
    kernel for any shape takes no floating-point number from outside."""

    def score(x: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(at[b, h, q] == at[b, h, k], -1e5, x)

    return score
