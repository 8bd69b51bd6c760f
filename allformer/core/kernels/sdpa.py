"""torch's fused attention on grids: flash, cuDNN, memory-efficient or its own, as torch chooses."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from allformer.core.kernels.kernel import Case, Plan


class SDPA:
    """`F.scaled_dot_product_attention`."""

    ragged = False

    def fits(self, case: Case) -> bool:
        return case.asked == "fast"

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        look = plan.look
        assert look is not None
        mask = look.merged if look.bias is None or look.merged is None else look.merged.to(q.dtype)
        gqa = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=look.causal, scale=scale,
            enable_gqa=gqa,
        )  # fmt: skip
        return out if look.blind is None else out.masked_fill(look.blind, 0.0)
