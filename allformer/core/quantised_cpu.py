"""x Wᵀ on a CPU for a matrix in four bits, without making it whole; eight bits are in `int8.py`.

For up to `FEW` rows: torch's product of bf16 by four bits. It wants the bytes in an order of its
own: from the first call on a layer has them in that one alone, and they are put back where somebody
asks for them. x, scales and results are rounded to bf16: 2e-3 of a value, which is far less than
what four bits have lost.

Legend: M rows, K inputs, N outputs, G groups of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

FEW = 64  # rows: for more, the matrix made whole is no slower
GROUPS = (32, 64, 128, 256)  # those that torch's product has
ROWS = 16  # N must be a multiple


class HalfBytes(NamedTuple):
    """A matrix in four bits, in the order that torch's product reads it."""

    packed: Tensor  # 1 N K/2: the plain order has two dimensions, so that nobody takes it for this
    scales: Tensor  # G N 2: a scale, and what is added to each number of the group
    of: Tensor  # the scales that they were made of: others there, and it must be made again
    block: int  # rows that stand together

    def times(self, x: Tensor, group: int) -> Tensor:
        """x M K → M N, in bf16."""
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16), self.packed[0], group, self.scales
        )
        return y


def half_bytes(unsigned: Tensor, scale: Tensor, least: Tensor | None) -> HalfBytes:
    """`unsigned` N K are the numbers, 0 … 15."""
    centre = torch.zeros_like(scale) if least is None else least + 8 * scale
    scales = torch.stack((scale, centre), -1).transpose(0, 1).to(torch.bfloat16).contiguous()
    block = rows_of_block()
    assert block is not None
    return HalfBytes(_turned(unsigned)[None], scales, scale, block)


def _turned(unsigned: Tensor) -> Tensor:
    packed: Any = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned.int(), 1)
    return packed  # type: ignore[no-any-return]


def ordered(packed: Tensor, block: int) -> Tensor:
    """The numbers N K, 0 … 15, from torch's order (N K/2): column after column of a block of rows,
    in each byte two rows that stand half a block apart; what is left over makes a block of its own,
    whose rows stand in order."""
    rows, inputs = len(packed), 2 * packed.shape[1]
    whole, flat = rows // block * block, packed.reshape(-1)
    halves = torch.stack((flat & 0xF, flat >> 4), -1).view(-1)
    blocks, rest = halves[: whole * inputs], halves[whole * inputs :]
    first = blocks.view(-1, inputs, block // 2, 2).permute(0, 3, 2, 1)
    return torch.cat((first.reshape(whole, inputs), rest.view(inputs, rows - whole).t()))


@cache
def rows_of_block() -> int | None:
    """How many rows torch's product has together, which depends on the processor. None: there is no
    such product, or its order is another."""
    with torch.inference_mode(False), torch.device("cpu"):  # whatever the caller's defaults are
        draw = torch.Generator().manual_seed(0)
        some = torch.randint(16, (128 + ROWS, 64), dtype=torch.uint8, generator=draw)
        try:
            mixed = _turned(some)
        except (RuntimeError, NotImplementedError, AttributeError):
            return None
        return next((n for n in (64, 32, 16) if ordered(mixed, n).equal(some)), None)


_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_products() -> Iterator[None]:
    """Inside, matrices are made whole: to compare with others number by number."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def only_result(x: Tensor) -> bool:
    """Whether x is a plain one on a CPU of which nobody wants more than the product."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and type(x) is Tensor
        and not _plain.get()
        and x.dtype in (torch.float32, torch.bfloat16)
        and not (torch.is_grad_enabled() and x.requires_grad)
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
    )
