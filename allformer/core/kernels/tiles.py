"""Blocks that look at blocks, by FlexAttention: BigBird's pattern in tiles of 128 × 128.

The pattern's blocks are often smaller than a tile: a tile that somebody sees is computed, and a
comparison of block numbers says which pairs in it count.

Legend: B batch, H heads, T tokens, n blocks of b tokens, m tiles, r random blocks of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from allformer.core.fused import HALF, has_triton
from allformer.core.kernels.flex import BLOCK, SIZES, call_flex, ordered
from allformer.core.random_blocks import Slots, table_of

Pair = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Added = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Tiles(NamedTuple):
    """What FlexAttention is given: who sees whom, what is added to the scores, and how its kernel
    is made."""

    mask: BlockMask
    added: Added | None
    options: dict[str, int] | None = None


def fits(device: torch.device, dtype: torch.dtype, size: int, block: int) -> bool:
    """Half precision on a GPU, and blocks that fill tiles or lie in them."""
    whole = BLOCK % block == 0 or block % BLOCK == 0
    on_gpu = device.type == "cuda" and has_triton() and not torch.compiler.is_compiling()
    return on_gpu and whole and dtype in HALF and size in SIZES


def make_tiles(
    slots: Slots, block: int, blocks: int, length: int, repeated: int, padded: bool = False
) -> Tiles:
    """The tiles of a row of `length` tokens; `padded`: every pair is asked about, see `pad_tiles`.

    `repeated`: the first block counts so many times more for all but the first and the last one;
    0: as often as the slots say.
    """
    table = table_of(slots, blocks)
    seen, whole = _in_tiles(table > 0, block, -(-length // BLOCK))
    if padded or length % BLOCK:
        whole = whole & False
    lists = (*_ordered(seen & ~whole), *_ordered(whole))
    pair = _pair(slots.columns[..., 5:], block, blocks)
    mask = BlockMask.from_kv_blocks(*lists, BLOCK, pair, (length, length))
    if repeated:
        more = torch.full((), log(1 + repeated), device=table.device)
        return Tiles(mask, _first_more(block, blocks, more))
    if bool((table > 1).any()):
        logs = table.clamp_min(1).float().log()
        # Stages that read ahead would keep a tile of these numbers each: more than a GPU has room.
        return Tiles(mask, _by_table(logs, block), {"num_stages": 1})
    return Tiles(mask, None)


def pad_tiles(tiles: Tiles, keep: Tensor) -> Tiles:
    """The same for rows of which some tokens are padding, `keep` B T; `tiles` are made `padded`."""
    mask = tiles.mask
    inside = mask.mask_mod

    def pair(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return inside(b, h, q, k) & keep[b, k]

    lists = mask.kv_num_blocks, mask.kv_indices
    return tiles._replace(
        mask=BlockMask.from_kv_blocks(*lists, None, None, BLOCK, pair, mask.seq_lengths)
    )


def attend(q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, scale: float) -> Tensor:
    """q B H T D, k and v B G T D → B H T D."""
    more = {"score_mod": tiles.added, "kernel_options": tiles.options}
    out: Tensor = call_flex(q, k, v, tiles.mask, scale, **more)
    return out


def _in_tiles(seen: Tensor, block: int, tiles: int) -> tuple[Tensor, Tensor]:
    """H n n of blocks → H m m of tiles: whether somebody in it is seen, and whether all are."""
    if block >= BLOCK:
        times = block // BLOCK
        seen = seen.repeat_interleave(times, 1).repeat_interleave(times, 2)[:, :tiles, :tiles]
        return seen, seen
    times = BLOCK // block
    extra = tiles * times - seen.shape[-1]
    seen = torch.nn.functional.pad(seen, (0, extra, 0, extra))
    tiled = seen.view(len(seen), tiles, times, tiles, times)
    return tiled.any(4).any(2), tiled.all(4).all(2)


def _ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles each row of tiles sees, and which: those first. H m m → 1 H m, 1 H m m."""
    counts, which = ordered(dense, torch.arange(dense.shape[-1], device=dense.device))
    return counts.transpose(0, 1), which.transpose(0, 1)  # a head is no row


def _pair(random: Tensor, block: int, blocks: int) -> Pair:
    """Whether a query sees a key, by the numbers of their blocks; `random` is H n−2 r."""
    last, one, count = blocks - 1, random.shape[0] == 1, random.shape[-1]
    drawn = torch.nn.functional.pad(random, (0, 0, 1, 1)).contiguous()  # the first: at all anyway

    def pair(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        i, j = q // block, k // block
        near = (i - j <= 1) & (j - i <= 1)
        seen = near | (i == 0) | (j == 0) | (i == last) | (j == last)
        for slot in range(count):
            seen = seen | (j == drawn[0 if one else h, i, slot])
        return seen

    return pair


def _first_more(block: int, blocks: int, more: Tensor) -> Added:
    """`more` is a tensor: a kernel for any shape takes no floating-point number from outside."""
    last = blocks - 1

    def added(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        i = q // block
        return torch.where((k < block) & (i > 0) & (i < last), score + more, score)

    return added


def _by_table(logs: Tensor, block: int) -> Added:
    one = logs.shape[0] == 1

    def added(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + logs[0 if one else h, q // block, k // block]

    return added
