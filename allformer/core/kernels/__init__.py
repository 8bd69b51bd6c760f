"""How softmax attention is computed: a short list, the first that fits serves.

    kernel = choose(Case("fast", x.device, x.dtype, size=64, packed=True))
    out = kernel(q, k, v, plan, scale=0.125, dropout=0.0)

A new kernel is a file with a class, and its place in `KERNELS`. All agree with `eager`, tested.
"""

from __future__ import annotations

from torch import Tensor

from allformer.core.kernels.banded import Banded
from allformer.core.kernels.eager import Eager
from allformer.core.kernels.flex import Flex
from allformer.core.kernels.kernel import Case, Kernel, Plan
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.kernels.sdpa import SDPA
from allformer.core.kernels.short import ShortRows
from allformer.core.look import Look

KERNELS: tuple[Kernel, ...] = (
    ShortRows(), RaggedFlash(), Flex(), Banded(), SDPA(), Eager(),
)  # fmt: skip


def choose(case: Case) -> Kernel:
    """The kernel for a stack's attention."""
    return next(kernel for kernel in KERNELS if kernel.fits(case))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    look: Look,
    *,
    scale: float,
    dropout: float = 0.0,
    kernel: str = "fast",
) -> Tensor:
    """Queries look at keys and take values, on grids: q B H T D, k and v B G S D → B H T D."""
    chosen = choose(Case(kernel, q.device, q.dtype, q.shape[-1]))
    return chosen(q, k, v, Plan(chosen, look), scale, dropout)


__all__ = ["KERNELS", "Case", "Kernel", "Plan", "attend", "choose"]
