"""Blocks of queries meet gathered blocks of keys, some blocks at a time, forward and backward.

    gathered(q, k, v, columns, bias, scale=0.125)     # m blocks of queries, c blocks of keys each

What is gathered is c times the keys, so that it is neither made at once nor kept for the backward
pass, which gathers it again.

Legend: B batch, H heads, n blocks of keys, m blocks of queries, b tokens of a block, c slots,
D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NUMBERS = {"cpu": 2**22, "cuda": 2**27}  # that are gathered at once


def gathered(
    q: Tensor, k: Tensor, v: Tensor, columns: Tensor, bias: Tensor, *, scale: float
) -> Tensor:
    """q B H m b D over blocks of k and v, each B H n b D → B H m·b D.

    `columns` (H m c) are the blocks that each block looks at; `bias` (B H m 1 c·b, or 1 in place of
    B and H) is added to the scores.
    """
    heads, blocks = k.shape[1:3]
    first = torch.arange(heads, device=q.device)[:, None, None] * blocks
    k, v = (x.reshape(len(x), heads * blocks, -1) for x in (k, v))  # B H·n b·D
    if torch.compiler.is_compiling():  # a graph has no loop
        return _look(q, k, v, columns + first, bias, scale)
    return _gathered(q, k, v, columns + first, bias, scale)  # type: ignore[no-any-return]


def _take(x: Tensor, columns: Tensor, size: int) -> Tensor:
    """B H·n b·D → B H·m c·b D: the blocks that `columns` name among those of all heads."""
    return x.index_select(1, columns.flatten()).view(len(x), columns[..., 0].numel(), -1, size)


def _mix(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """q B H m b D, what was taken of k and v → B H m·b D."""
    heads = q.shape[1]
    bias = bias.expand(-1, heads, -1, -1, -1).flatten(1, 2)  # B H·m 1 c·b
    out = F.scaled_dot_product_attention(q.flatten(1, 2), k, v, bias, scale=scale)
    return out.reshape(len(out), heads, -1, q.shape[-1])


def _look(q: Tensor, k: Tensor, v: Tensor, columns: Tensor, bias: Tensor, scale: float) -> Tensor:
    size = q.shape[-1]
    return _mix(q, _take(k, columns, size), _take(v, columns, size), bias, scale)


def _some(q: Tensor, columns: Tensor) -> Iterator[slice]:
    """Blocks of queries that are looked at together."""
    most = NUMBERS.get(q.device.type, 2**27) // (q[:, :, 0].numel() * columns.shape[-1]) or 1
    return (slice(i, i + most) for i in range(0, q.shape[2], most))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, columns: Tensor, bias: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, columns, bias)
        ctx.scale = scale
        return torch.cat(
            [_look(q[:, :, x], k, v, columns[:, x], bias[:, :, x], scale)
             for x in _some(q, columns)], 2,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, columns, bias = ctx.saved_tensors
        block, size = q.shape[-2:]
        to_q, to_k, to_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for x in _some(q, columns):
            which = columns[:, x]
            leaves = q[:, :, x].detach(), _take(k, which, size), _take(v, which, size)
            with torch.enable_grad():
                mine, here, there = (y.requires_grad_() for y in leaves)
                out = _mix(mine, here, there, bias[:, :, x], ctx.scale)
            rows = slice(x.start * block, x.stop * block)
            part, keys, values = torch.autograd.grad(out, leaves, grads[0][:, :, rows])
            to_q[:, :, x] = part
            for total, new in ((to_k, keys), (to_v, values)):
                total.index_add_(1, which.flatten(), new.reshape(len(new), which.numel(), -1))
        return to_q, to_k, to_v, None, None, None


_gathered: Any = _Gathered.apply
