"""A window and global columns through FlexAttention: blocks that hold neither are left out.

The blocks that each row of blocks sees are worked out from indices, 128 × 128 tokens at a time;
padding and global tokens inside a block are compared as it is computed.

Legend: B rows, T queries and keys of a row, H heads, D head size, K = T/128 blocks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from allformer.core.kernels.flex import BLOCK, call_flex, ordered


def global_flex(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, scale: float) -> Tensor:
    """q B H T D, k and v B G T D → B H T D, within the blocks of `global_blocks`."""
    out: Tensor = call_flex(q, k, v, blocks, scale)
    return out


def global_blocks(
    size: tuple[int, int],
    reach: tuple[int, int],
    keep: Tensor | None,
    marks: Tensor | None,
    device: torch.device,
) -> BlockMask:
    """Who may look at whom: keys within reach, and marked ones (B T), where `keep` (B T) is.

    `size` is rows and width: `global_blocks((8, 4096), (256, 256), None, marks, device)`.
    """
    (_, width), (left, right) = size, reach
    there = _full(keep, True, size, device)
    marked = _full(marks, False, size, device) & there

    low = -left  # a kernel for any shape takes numbers, but no sums of them

    def may(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = (k - q >= low) & (k - q <= right)
        return (near | marked[b, k]) & there[b, k]

    number = torch.arange(-(-width // BLOCK), device=device)
    far = (number[None, :] - number[:, None]) * BLOCK  # K K, of the blocks' first tokens
    band = (far + BLOCK - 1 >= -left) & (far - BLOCK + 1 <= right)
    inner = (far - BLOCK + 1 >= -left) & (far + BLOCK - 1 <= right)
    seen = (band & _of_blocks(there, any)[:, None]) | _of_blocks(marked, any)[:, None]  # B K K
    whole = inner & _of_blocks(there, all)[:, None]  # need no comparison
    whole[:, -1] &= width % BLOCK == 0
    return BlockMask.from_kv_blocks(
        *ordered(seen & ~whole, number), *ordered(whole, number), BLOCK, may, (width, width)
    )


def _full(x: Tensor | None, value: bool, size: tuple[int, int], device: torch.device) -> Tensor:
    return torch.full(size, value, device=device) if x is None else x


def _of_blocks(x: Tensor, quantor: Any) -> Tensor:
    """B T → B K: whether any, or all, of a block's tokens are."""
    blocks = F.pad(x, (0, -x.shape[1] % BLOCK)).view(len(x), -1, BLOCK)
    return blocks.any(-1) if quantor is any else blocks.all(-1)
