"""One AdamW step of one tensor in one pass: 16 bytes read and 12 written for each number."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 4096, 8


@triton.jit
def _adamw(
    p, g, m, v, step, rate, scale, found, count, first, second, eps, decay,
    SCALED: tl.constexpr, CHECKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wanted = True
    if CHECKED:
        wanted = tl.load(found) == 0.0
    if wanted:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = at < count
        lr, t = tl.load(rate).to(tl.float32), tl.load(step)
        grad = tl.load(g + at, mask=there, other=0.0).to(tl.float32)
        if SCALED:
            grad = grad / tl.load(scale)
        mean = tl.load(m + at, mask=there, other=0.0)
        mean = mean + (1.0 - first) * (grad - mean)
        square = tl.load(v + at, mask=there, other=0.0)
        square = second * square + (1.0 - second) * grad * grad
        bias = 1.0 - tl.exp2(t * tl.log2(first))  # 1 − β₁ᵗ
        bias_square = 1.0 - tl.exp2(t * tl.log2(second))
        below = tl.sqrt(square) / tl.sqrt(bias_square) + eps
        x = tl.load(p + at, mask=there, other=0.0)
        x = x * (1.0 - lr * decay) - lr / bias * mean / below
        tl.store(p + at, x, mask=there)
        tl.store(m + at, mean, mask=there)
        tl.store(v + at, square, mask=there)


def adamw_(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor, rate: Tensor,
    scale: Tensor | None, found: Tensor | None, betas: tuple[float, float], eps: float,
    decay: float,
) -> None:  # fmt: skip
    """p, m and v are changed in place; `step` counts this one too."""
    _adamw[(triton.cdiv(p.numel(), _BLOCK),)](
        p, g, m, v, step, rate, scale, found, p.numel(), *betas, eps, decay,
        SCALED=scale is not None, CHECKED=found is not None, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
