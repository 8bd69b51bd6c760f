"""Windows over long rows: PyTorch's FlexAttention, which leaves out the blocks that nobody sees.

SDPA takes a window as a mask over all pairs, in memory and in work; here a query meets the blocks
of keys within its reach alone. Packed documents are one long row of which each part sees itself.

Legend: T queries and keys of a row, N packed tokens, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from allformer.core.fused import HALF, has_triton
from allformer.core.kernels.kernel import Case, Plan
from allformer.core.layout import Grid, Packed

if TYPE_CHECKING:
    from allformer.core.mixers.mixer import Scene

Judge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

BLOCK = 128
ON = ("cuda",)  # devices for which it is compiled: there are kernels
LONG = 2048  # places in a row: for shorter ones a mask is cheap
SIZES = (16, 32, 64, 128, 256)
SHAPES = 16  # have a kernel of their own; what comes after shares one


class Flex:
    """Half precision, no dropout, nothing added, a window that is less than half of a long row."""

    ragged = False
    whole = False

    def fits(self, case: Case) -> bool:
        narrow = case.width >= LONG and 0 < case.window <= case.width // 2
        plain = not (case.drops or case.biased or case.past)
        half = case.dtype in HALF and case.size in SIZES
        on_gpu = case.device.type == "cuda" and has_triton()
        return case.asked == "fast" and narrow and plain and half and on_gpu

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        assert plan.blocks is not None
        packed = plan.look is None
        if packed:  # N H D → 1 H N D
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out: Tensor = call_flex(q, k, v, plan.blocks, scale)
        return out[0].transpose(0, 1) if packed else out


def call_flex(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, scale: float, **more: Any) -> Any:
    """q B H T D, k and v B G S D → B H T D, by a compiled kernel whatever the shapes.

    Left to itself torch gives up after eight kinds of call, and then computes all pairs. `more` is
    for FlexAttention itself; on a CPU only tests come here, and nothing is compiled.
    """
    more |= {"block_mask": blocks, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if torch.compiler.is_compiling() or q.device.type not in ON:
        return flex_attention(q, k, v, **more)
    shape = (q.shape, k.shape)
    if len(_shapes) < SHAPES:
        _shapes.add(shape)
    with _patience():
        return _compiled(shape in _shapes)(q, k, v, **more)


_shapes: set[tuple[torch.Size, torch.Size]] = set()


@cache
def _compiled(own: bool) -> Any:
    """For one shape, which is fastest; or for any, where there are many: packed rows."""
    call: Any = flex_attention if own else _any_shape
    return torch.compile(call, dynamic=not own)


def _any_shape(*args: Any, **more: Any) -> Any:
    return flex_attention(*args, **more)  # torch counts what is compiled by function


def _patience() -> Any:
    config: Any = torch._dynamo.config
    return config.patch(recompile_limit=256, accumulated_recompile_limit=1024)


def window_blocks(scene: Scene, reach: tuple[int, int], dilation: int = 1) -> BlockMask:
    """Who may look at whom, block by block: within reach, in the same row, not ahead if causal."""
    left, right = reach
    right = 0 if scene.causal else right
    low = -left  # a kernel for any shape takes numbers, but no sums of them
    layout = scene.query

    def near(far: Tensor) -> Tensor:
        inside = (far >= low) & (far <= right)
        return inside if dilation == 1 else inside & (far % dilation == 0)

    if isinstance(layout, Packed):
        length, may, there = _packed(layout, near)
    else:
        length, may, there = _padded(layout, near)

    def judge(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        far = (k - q) * BLOCK  # of the blocks' first tokens
        seen = (far + BLOCK - 1 >= -left) & (far - BLOCK + 1 <= right)
        whole = (far - BLOCK + 1 >= -left) & (far + BLOCK - 1 <= right)
        some, all_ = there(q, k)
        return seen & some, whole & all_ & (dilation == 1)

    return near_blocks(length, (-(-left // BLOCK), -(-right // BLOCK)), judge, may, scene.device)


def _padded(layout: Grid, near: Callable[[Tensor], Tensor]) -> tuple[int, Any, Judge]:
    """Rows side by side. Blocks of padding cost nothing: a query without keys gets zeros."""
    length, keep = layout.width, layout.keep
    inner = length // BLOCK  # the last block may be cut short
    if keep is None:

        def inside(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return near(k - q)

        def full(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            uncut = (q < inner) & (k < inner)
            return uncut | True, uncut

        return length, inside, full

    def real(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return near(k - q) & keep[b, k]

    blocks = torch.nn.functional.pad(keep, (0, -length % BLOCK)).view(keep.shape[0], -1, BLOCK)
    some, all_ = blocks.any(-1), blocks.all(-1)  # R blocks

    def there(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return some[:, q] & some[:, k], (q < inner) & all_[:, k]

    return length, real, there


def _packed(layout: Packed, near: Callable[[Tensor], Tensor]) -> tuple[int, Any, Judge]:
    """Rows end to end. Places of packed tokens are at least as far apart as their numbers: what is
    near by place is near by number."""
    row, place = layout.cells // layout.total, layout.cells % layout.total
    length = layout.cells.shape[0]

    def may(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return near(place[k] - place[q]) & (row[q] == row[k])

    def there(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        early, late = torch.minimum(q, k), torch.maximum(q, k)
        first, last = early * BLOCK, (late * BLOCK + BLOCK - 1).clamp_max(length - 1)
        ends = (early * BLOCK + BLOCK - 1).clamp_max(length - 1)
        meet = row[ends] >= row[late * BLOCK]  # rows are in order
        one = row[first] == row[last]
        dense = place[last] - place[first] == last - first  # no padding inside
        return meet, one & dense & (late < length // BLOCK)

    return length, may, there


def near_blocks(
    length: int, reach: tuple[int, int], judge: Judge, may: Any, device: torch.device
) -> BlockMask:
    """A mask whose blocks of queries see no more than `reach` blocks before and after their own.

    Only those are listed, so that nothing is as large as all pairs of blocks: a million tokens have
    8192 × 8192 of them. `judge(q, k)` says of pairs of blocks what is seen, and what wholly.
    """
    before, after = reach
    count = -(-length // BLOCK)

    def side(before: int, after: int, turned: bool) -> tuple[Tensor, ...]:
        block = torch.arange(count, device=device)[:, None]
        other = block + torch.arange(-before, after + 1, device=device)  # blocks M
        inside = (other >= 0) & (other < count)
        other = other.clamp(0, count - 1)
        seen, whole = judge(other, block) if turned else judge(block, other)
        seen = seen & inside
        whole = whole & seen
        return *ordered(seen & ~whole, other), *ordered(whole, other)

    kv, q = side(before, after, turned=False), side(after, before, turned=True)
    return BlockMask(
        seq_lengths=(length, length),
        kv_num_blocks=kv[0], kv_indices=kv[1], full_kv_num_blocks=kv[2], full_kv_indices=kv[3],
        q_num_blocks=q[0], q_indices=q[1], full_q_num_blocks=q[2], full_q_indices=q[3],
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=may,
    )  # fmt: skip


def ordered(dense: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the blocks `other` each block sees (`dense`, (R) blocks M), and which, those
    first: (R or 1) 1 blocks, and (R or 1) 1 blocks M."""
    dense = dense if dense.dim() == 3 else dense[None]
    order = torch.argsort(dense.int(), dim=-1, descending=True, stable=True)
    which = other.expand_as(order).gather(-1, order)
    return dense.sum(-1).int()[:, None], which.int()[:, None]
