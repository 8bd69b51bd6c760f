"""What sorting tokens by bucket moves: plainly, or on a GPU by kernels that move whole rows.

Legend: B rows, H heads, R rounds, L places of a round, T tokens, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.fused import HALF, has_triton
from allformer.core.taps import listening


def _by_kernel(x: Tensor) -> bool:
    here = x.is_cuda and x.dtype in HALF and has_triton()
    return here and not torch.compiler.is_compiling() and x.stride(-1) == 1


def moved(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """x B H R L D (or B H R L) with what stands at `order` in each place; `back` undoes it.

    Its backward moves gradients back, where autograd would sum them up for any index.
    """
    found: Tensor = _apply(x, order, back)
    return found


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return _pick(x, order)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (back,) = ctx.saved_tensors
        return _pick(grads[0], back), None, None


_apply: Any = _Moved.apply


def _pick(x: Tensor, order: Tensor) -> Tensor:
    if x.ndim == order.ndim:
        return x.gather(3, order)
    if _by_kernel(x):
        from allformer.core.fused.gpu import sorting

        return sorting.pick(x, order.contiguous())
    return x.gather(3, order[..., None].expand(*order.shape, x.shape[-1]))


def merged(context: Tensor, total: Tensor, order: Tensor, back: Tensor, width: int) -> Tensor:
    """The rounds by how much each has seen: context B H R L D and total B H R L, in `order`, which
    `back` undoes → B H T D of the first `width` tokens."""
    if _by_kernel(context) and not (torch.is_grad_enabled() or listening()):
        from allformer.core.fused.gpu import sorting

        return sorting.merge(context.contiguous(), total.contiguous(), back, width)
    context = moved(context, back, order)[:, :, :, :width]
    return merge_rounds(context, moved(total, back, order)[..., :width])


def merge_rounds(context: Tensor, total: Tensor) -> Tensor:
    """B H R T D, B H R T → B H T D."""
    if context.shape[2] == 1:
        return context[:, :, 0]
    share = total.softmax(2).to(context.dtype)
    return (context * share[..., None]).sum(2)


def farthest(x: Tensor) -> Tensor:
    """argmax([x; −x]), … n → …, without making them one; no gradient."""
    if _by_kernel(x) and x.shape[-1] <= 2048:
        from allformer.core.fused.gpu import sorting

        return sorting.farthest(x)
    most, least = x.max(-1), x.min(-1)
    return torch.where(most.values >= -least.values, most.indices, x.shape[-1] + least.indices)
