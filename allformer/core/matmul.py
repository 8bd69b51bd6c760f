"""x Wᵀ + b, by the faster of torch's two CPU kernels.

On a CPU in fp32 torch hands matrix products to MKL, which is at home on Intel's processors. On
AMD's, oneDNN, which is inside torch as well, is faster for all but small products (docs/results.md,
"One matrix product on a CPU"). Its operator has no derivative, so `_Product` gives it one, whose
products are oneDNN's too; transforms, watchers and compiled graphs do not know it, and see torch's.

Who writes token by token says so (`few_rows_by`), and a compiled kernel serves products of a few
rows: both of torch's read the weights anew for each, or copy them first.

Legend: R rows, K inputs, N outputs.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

LARGE = 1 << 22  # rows × weights from which oneDNN wins: below, its call costs more than it saves
MANY = 16  # rows: for fewer, MKL's one thread is no slower when the other cores are busy
FEW = 8  # rows that the compiled kernel takes


def _find_onednn() -> Any:
    """The operator that `torch.compile` itself uses, or None where it is missing or no gain."""
    if not torch._C._has_mkldnn or "AuthenticAMD" not in _processor():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _processor() -> str:
    """What the system says of the first core; on Windows the vendor is in `platform.processor`."""
    try:
        with open("/proc/cpuinfo") as file:
            return file.read(1024)
    except OSError:
        return platform.processor()


_onednn = _find_onednn()


def onednn_is_faster() -> bool:
    """Whether this is a processor on which it is, of many rows in fp32."""
    return _onednn is not None


class FewRows(Protocol):
    """A kernel for a few rows (`lean/native.py`)."""

    def fp32(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...


_few: ContextVar[Callable[[Tensor], FewRows | None] | None] = ContextVar("few", default=None)


@contextmanager
def few_rows_by(find: Callable[[Tensor], FewRows | None]) -> Iterator[None]:
    """Inside, products of a few rows are those of `find(weight)`, where there is one."""
    token = _few.set(find)
    try:
        yield
    finally:
        _few.reset(token)


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x … K, weight N K, bias N → … N, all of one dtype."""
    find = None if torch.compiler.is_compiling() else _few.get()  # a graph knows no such thing
    if find is not None and 0 < x.numel() <= FEW * x.shape[-1] and only_result(x, weight):
        few = find(weight)
        if few is not None:
            return few.fp32(x, weight, bias if bias is None else bias.contiguous())
    if not _serves(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = (_Product.apply if torch.is_grad_enabled() else _times)(x, weight, bias)
    return out


def added(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y … N + x Wᵀ."""
    if _serves(x, weight):
        return y + matmul(x, weight, None)
    flat = torch.addmm(y.reshape(-1, y.shape[-1]), x.flatten(0, -2), weight.t())
    return flat.view(y.shape)


def outer(dy: Tensor, x: Tensor) -> Tensor:
    """dyᵀ x, R N and R K → N K: the gradient of a weight.

    oneDNN copies the first of two matrices into its order: let it be the smaller one.
    """
    rows, outputs, inputs = *dy.shape, x.shape[1]
    if _serves(x.t(), dy.t()) and (rows + outputs) * inputs < rows * outputs:  # copied as it lies
        return matmul(x.t(), dy.t(), None).t()
    return matmul(dy.t(), x.t(), None)


def _serves(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's product is faster here, and nobody would miss torch's."""
    if _onednn is None or torch.compiler.is_compiling():  # a graph would be bound to the sizes
        return False
    outputs, inputs = weight.shape
    large = x.numel() * outputs >= LARGE and x.numel() >= MANY * inputs
    return large and _plain(x, weight)


def _times(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = _onednn(x, weight, bias, "none", [], "")
    return out


class _Product(torch.autograd.Function):
    """y = x Wᵀ + b; ∂x = ∂y W, ∂W = ∂yᵀ x, ∂b = Σ ∂y. Its derivative can be derived again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wants = ctx.needs_input_grad  # what is frozen keeps nothing
        ctx.save_for_backward(x if wants[1] else None, weight if wants[0] else None)
        ctx.shape = x.shape
        return _times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        dy = grads[0].reshape(-1, grads[0].shape[-1])  # R N
        dx = dw = None
        if weight is not None:
            dx = matmul(dy, weight.t(), None).view(ctx.shape)
        if x is not None:
            dw = outer(dy, x.reshape(-1, x.shape[-1]))
        return dx, dw, dy.sum(0) if ctx.needs_input_grad[2] else None


def only_result(x: Tensor, weight: Tensor) -> bool:
    """True for plain fp32 on a CPU when nobody differentiates, transforms, compiles or watches."""
    return not torch.is_grad_enabled() and _plain(x, weight)


def _plain(x: Tensor, weight: Tensor) -> bool:
    """True for plain fp32 on a CPU when nobody transforms, compiles or watches."""
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)  # not quantised, sharded, fake, …
        and forward_ad._current_level < 0
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_mkldnn_enabled()
    )
