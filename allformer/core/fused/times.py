"""x Wᵀ of a few rows, with what stands before and behind it in a step of decoding.

    qkv = times(x, wide, norm=norm)                          # norm(x) Wᵀ + b
    x = times(context, out, more=x)                          # x + context Wᵀ + b
    inner = times(x, up, norm=norm, gate=gate, act="silu")   # act(norm(x) W_gᵀ) ⊙ norm(x) Wᵀ

Weights are read once and nothing else is much, so a kernel's time is that of its weights.

Legend: R rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.activation import ACT
from allformer.core.fused import HALF, has_triton
from allformer.core.fused.feed import KNOWN
from allformer.core.fused.matrix import Gain, Matrix
from allformer.core.precision import cast, widen

FEW = 16  # rows of plain weights: for more, cuBLAS has the better tiles
FEW_PACKED = 64  # rows of bytes: whoever has no kernel for them must widen them all first


def by_kernel(x: Tensor) -> bool:
    """Whether kernels can run where x is; they sum in fp32, so wider numbers go the plain way."""
    return x.is_cuda and x.dtype in (*HALF, torch.float32) and has_triton()


def kernel_of(matrix: Matrix, rows: int, dtype: torch.dtype) -> str | None:
    """ "row", "rows" or None: which kernel multiplies so many rows by such weights."""
    if rows == 1 and matrix.bits is None:
        return "row"
    most = FEW if matrix.bits is None else FEW_PACKED
    least = 32 if matrix.bits == 4 else 16  # inputs that tensor cores take at a time, two a byte
    if dtype in HALF and rows <= most and (matrix.group & -matrix.group) >= least:
        return "rows"
    return "row" if rows == 1 and matrix.bits == 8 and _whole(matrix) else None


def _whole(matrix: Matrix) -> bool:
    return matrix.group == matrix.inputs and matrix.least is None


def times(
    x: Tensor,
    matrix: Matrix,
    *,
    norm: Gain | None = None,
    gate: Matrix | None = None,
    act: str | None = None,
    more: Tensor | None = None,
) -> Tensor:
    """more + act(norm(x) Wᵀ + b), R K → R N; a gate is act(norm(x) W_gᵀ + b_g) before the product.

    Every part but the product may be missing.
    """
    if gate is not None and not matrix.alike(gate):
        assert act is not None, "a gate has an activation"
        y = times(x, gate, norm=norm, act=act) * times(x, matrix, norm=norm)
        return y if more is None else more + y
    kernel = kernel_of(matrix, len(x), x.dtype) if by_kernel(x) else None
    if kernel is None or (act is not None and act not in KNOWN):
        return plain_times(x, matrix, norm=norm, gate=gate, act=act, more=more)
    from allformer.core.fused.gpu import times as gpu

    if kernel == "row":
        return gpu.times_row(x, matrix, norm, gate, act, more)
    if norm is not None and len(x) > 1:
        x, norm = gpu.norm_rows(x, norm), None
    return gpu.times_rows(x, matrix, norm, gate, act, more)


def plain_times(
    x: Tensor,
    matrix: Matrix,
    *,
    norm: Gain | None = None,
    gate: Matrix | None = None,
    act: str | None = None,
    more: Tensor | None = None,
) -> Tensor:
    """The same by torch's operations."""
    x = x if norm is None else normed(x, norm)
    y = F.linear(x, matrix.dense(x.dtype), matrix.bias)
    if gate is not None:
        assert act is not None, "a gate has an activation"
        y = ACT[act](F.linear(x, gate.dense(x.dtype), gate.bias)) * y
    elif act is not None:
        y = ACT[act](y)
    return y if more is None else more + y


def normed(x: Tensor, norm: Gain) -> Tensor:
    """γ ⊙ (x − μ)/σ + β, or γ ⊙ x/√mean(x²), as `core.norm` has them."""
    wide = widen(x)
    weight = cast(norm.weight, wide.dtype)
    if norm.bias is None:
        return F.rms_norm(wide, weight.shape, weight, norm.eps).to(x.dtype)
    bias = cast(norm.bias, wide.dtype)
    return F.layer_norm(wide, weight.shape, weight, bias, norm.eps).to(x.dtype)
