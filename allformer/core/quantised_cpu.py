"""x Wᵀ on a CPU for a matrix in eight or four bits, without making it whole.

Eight bits with a scale for each output: products of integers, which processors do fastest. x is
written in two digits of eight bits each, so that it keeps sixteen: 1.5e-5 of a row's largest value
is lost, where the usual one digit loses 4e-3. The bytes are read where they lie.

Four bits, for up to `FEW` rows: torch's product of bf16 by four bits. It wants the bytes in an
order of its own (a second copy, made at the first call), and x, scales and results are rounded to
bf16: 2e-3 of a value, which is far less than what four bits have lost.

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


@cache
def multiplies_bytes() -> bool:
    """Whether this processor's products of bytes are there and exact.

    Those without instructions for it add pairs in sixteen bits, which overflow at the extremes.
    """
    if not torch._C._has_mkldnn:
        return False
    a = torch.full((4, 64), -127, dtype=torch.int8)
    b = torch.full((16, 64), -128, dtype=torch.int8)
    try:
        return bool((torch._int_mm(a, b.t()) == 64 * 127 * 128).all())
    except RuntimeError:
        return False


def digits(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x M K as unit · (a + b / 254), a and b of eight bits: a, b, and the unit, M 1."""
    unit = x.abs().amax(1, keepdim=True).clamp_min_(1e-30).mul_(1 / 127)
    many = x / unit
    first = many.round()
    second = many.sub_(first).mul_(254).round_()
    return first.to(torch.int8), second.to(torch.int8), unit


def times_bytes(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    """x M K by q N K int8, each of its rows times scale N → M N in fp32."""
    a, b, unit = digits(x)
    if len(x) == 1:  # one row has a faster product of its own
        coarse, fine = torch._int_mm(a, q.t()), torch._int_mm(b, q.t())
    else:
        coarse, fine = torch._int_mm(torch.cat((a, b)), q.t()).chunk(2)
    y = torch.add(coarse.float(), fine, alpha=1 / 254)
    return y.mul_(scale).mul_(unit)


class HalfBytes(NamedTuple):
    """A matrix in four bits, in the order that torch's product reads it."""

    source: Tensor  # what it was made of: another one there, and it must be made again
    packed: Tensor
    scales: Tensor  # G N 2: a scale, and what is added to each number of the group

    def times(self, x: Tensor, group: int) -> Tensor:
        """x M K → M N, in bf16."""
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16), self.packed, group, self.scales
        )
        return y


def half_bytes(packed: Tensor, unsigned: Tensor, scale: Tensor, least: Tensor | None) -> HalfBytes:
    """`unsigned` N K are the numbers of `packed`, 0 … 15."""
    centre = torch.zeros_like(scale) if least is None else least + 8 * scale
    scales = torch.stack((scale, centre), -1).transpose(0, 1).to(torch.bfloat16).contiguous()
    turned: Any = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned.int(), 1)
    return HalfBytes(packed, turned, scales)


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
