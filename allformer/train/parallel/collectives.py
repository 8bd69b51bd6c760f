"""Sums and parts over a group of ranks that gradients can pass.

Legend: C ranks of the group, x a tensor of this rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any  # dist.ProcessGroup

# Under the names of torch 2.13 where it has them, else those of before.
_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        count = dist.get_world_size(group)
        first = x.movedim(dim, 0).contiguous()
        out = first.new_empty(count * first.shape[0], *first.shape[1:])
        _gather(out, first, group=group)
        return out.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        count = dist.get_world_size(ctx.group)
        grad = grads[0].movedim(ctx.dim, 0).contiguous()
        out = grad.new_empty(grad.shape[0] // count, *grad.shape[1:])
        _scatter(out, grad, group=ctx.group)
        return out.movedim(0, ctx.dim), None, None


def copied(x: Tensor, group: Group) -> Tensor:
    """x as it is, for ranks that each use it in their own way: its gradients are summed."""
    out: Tensor = _Copied.apply(x, group)  # type: ignore[no-untyped-call]
    return out


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of all ranks' x, which all go on with alike: the gradient is each one's own."""
    out: Tensor = _Summed.apply(x, group)  # type: ignore[no-untyped-call]
    return out


def gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    """All ranks' x, one behind the other along `dim`; their gradients are summed, and cut again."""
    out: Tensor = _Gathered.apply(x, group, dim)  # type: ignore[no-untyped-call]
    return out


def sum_gradients(parameters: list[Any], group: Group, bucket: int = 1 << 24) -> None:
    """Add up the gradients of all ranks in place, many small ones in one go."""
    grads = [p.grad for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(g.dtype for g in grads):
        batch: list[Tensor] = []
        for grad in [g for g in grads if g.dtype == dtype]:
            batch.append(grad)
            if sum(g.numel() for g in batch) >= bucket:
                _sum_flat(batch, group)
                batch = []
        if batch:
            _sum_flat(batch, group)


def _sum_flat(grads: list[Tensor], group: Group) -> None:
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat, group=group)
    for grad, part in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))
