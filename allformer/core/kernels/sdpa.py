"""torch's fused attention on grids: flash, cuDNN, memory-efficient or its own, as torch chooses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from allformer.core.kernels.kernel import Case, Plan


class SDPA:
    """`F.scaled_dot_product_attention`."""

    ragged = False
    whole = False

    def fits(self, case: Case) -> bool:
        return case.asked == "fast"

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        look = plan.look
        assert look is not None
        mask = look.merged if look.bias is None or look.merged is None else look.merged.to(q.dtype)
        gqa = q.shape[1] != k.shape[1]
        out = (_cudnn_first if _on_hopper(q, dropout) else F.scaled_dot_product_attention)(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=look.causal, scale=scale,
            enable_gqa=gqa,
        )  # fmt: skip
        return out if look.blind is None else out.masked_fill(look.blind, 0.0)


# A preference, not a restriction: what cuDNN does not do, the next one does.
_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def _on_hopper(q: Tensor, dropout: float) -> bool:
    """Where cuDNN's kernels are the faster ones: training on an H100 or later."""
    if not q.is_cuda or dropout or not q.requires_grad or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(q.device) >= (9, 0)


def _cudnn_first(*args: Any, **options: Any) -> Tensor:
    with sdpa_kernel(_ORDER, set_priority=True):
        return F.scaled_dot_product_attention(*args, **options)
