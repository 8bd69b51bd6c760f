"""BigBird's random blocks, and which blocks each block looks at, as transformers draws them.

All of it depends on a few numbers alone, so that it is worked out once for all calls.

Legend: H heads, n blocks of a row, r random ones, c slots: blocks that a block looks at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.config import BlockSparse
from allformer.errors import ConfigError

PAPER = (1024, 3072, 4096)  # tokens: rows of these lengths are drawn by the plan of the paper
REACH = 1024  # tokens: the paper's plan draws from the first so many


class Slots(NamedTuple):
    """The blocks that blocks 1 … n − 2 look at, and how often each counts in the softmax.

    The first axis is 1 where all heads look alike. What counts 0 times fills a slot, no more.
    """

    columns: Tensor  # H n-2 c: the number of a block
    times: Tensor  # H n-2 c


def draw_blocks(mixer: BlockSparse, heads: int, blocks: int) -> np.ndarray:
    """The random blocks of each head and of each block but the first and the last: H n−2 r.

    >>> draw_blocks(BlockSparse(block=2, random=1, seed=3), heads=1, blocks=8)[0, :, 0]
    array([4, 4, 1, 1, 3, 3], dtype=int32)

    numpy's own generator stays as it is.
    """
    dice = np.random.RandomState(mixer.seed)  # what np.random.seed(seed) starts
    if blocks * mixer.block in PAPER:
        rows = max(mixer.table // mixer.block, blocks)
        return np.stack([_by_paper(dice, mixer, rows) for _ in range(heads)])[:, : blocks - 2]
    return _by_plan(dice, mixer.random, heads, blocks)


def _by_plan(dice: np.random.RandomState, r: int, heads: int, blocks: int) -> np.ndarray:
    """From the first 2r + 5 blocks, without those that are looked at anyway."""
    near = 2 * r + 5
    found = np.zeros((heads, blocks - 2, r), np.int32)
    for i in range(1, blocks - 1) if r else ():
        seen = {0, i - 1, i, i + 1, near - 1}
        # Google's rule for the second block and the last but one, counted in the first ones.
        seen |= {near - 2} if i == 1 else {1} if i == near - 2 else set()
        for head in range(heads):
            order = dice.permutation(near)
            found[head, i - 1] = [k for k in order if k not in seen][:r]
    return found


def _by_paper(dice: np.random.RandomState, mixer: BlockSparse, rows: int) -> np.ndarray:
    """From the first 1024 tokens, for one head: rows−2 r. Near the end a block may be drawn that is
    looked at anyway (the reference's own comment says so); its keys count twice."""
    block, r = mixer.block, mixer.random
    middle = np.arange(1, rows - 1, dtype=np.int32)
    last = REACH // block - 1 if 2 * block < REACH else rows - 1
    found = np.zeros((rows - 2, r), np.int32)
    for i in range(1, rows - 1):
        if i <= 2:
            pool = middle[i + 1 : last]
        elif i >= rows - 3 or i - 2 > last:
            pool = middle[:last]
        else:
            ahead = middle[:0] if i + 1 == last else middle[i + 1 : last]
            pool = np.concatenate((middle[: i - 2], ahead))
        chosen = dice.permutation(pool)[:r]
        if len(chosen) not in (r, 1):
            raise ConfigError(
                f"BlockSparse.block={block} leaves {len(chosen)} blocks of the first {REACH} "
                f"tokens to draw random={r} from, in a row of 1024, 3072 or 4096 tokens; "
                f"try a smaller block, or pad to another length"
            )
        found[i - 1] = chosen
    return found


def slots_of(mixer: BlockSparse, heads: int, blocks: int, drawn: bool) -> Slots:
    """Which blocks are looked at in a row of so many; `drawn`: random ones, not the first."""
    at = np.arange(1, blocks - 1)
    zero, end = np.zeros_like(at), np.full_like(at, blocks - 1)
    columns = np.stack([zero, at - 1, at, at + 1, end], -1)[None]  # 1 n-2 5
    times = np.ones_like(columns)
    times[:, 0, 1] = times[:, -1, 3] = 0  # the neighbour is the first one, or the last
    if not drawn:
        times[:, :, 0] += mixer.random
        return Slots(torch.from_numpy(columns), torch.from_numpy(times))
    random = draw_blocks(mixer, heads, blocks)  # H n-2 r
    columns, times = (np.repeat(x, heads, 0) for x in (columns, times))
    for one in np.split(random, mixer.random, -1) if mixer.random else ():
        known = (columns == one) & (times > 0)
        times = np.concatenate([times + known, ~known.any(-1, keepdims=True)], -1)
        columns = np.concatenate([columns, one], -1)
    return Slots(torch.from_numpy(columns), torch.from_numpy(times))


def table_of(slots: Slots, blocks: int) -> Tensor:
    """How often the keys of each block count for each block, H n n: of blocks, not of tokens."""
    heads, device = slots.columns.shape[0], slots.columns.device
    table = torch.ones(heads, blocks, blocks, dtype=torch.int16, device=device)
    table[:, 1:-1] = 0
    table[:, 1:-1].scatter_add_(2, slots.columns, slots.times.to(table.dtype))
    return table
