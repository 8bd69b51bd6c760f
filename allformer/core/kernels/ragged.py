"""Flash attention over rows of unequal length that lie end to end: nothing is padded."""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.kernels.kernel import Case, Plan


class RaggedFlash:
    """Half precision, heads of 8n ≤ 256, an Ampere or later."""

    ragged = True
    whole = False

    def fits(self, case: Case) -> bool:
        half = case.dtype in (torch.bfloat16, torch.float16)
        shape = case.packed and case.full and case.size % 8 == 0 and case.size <= 256
        if not (case.asked == "fast" and shape and half and case.device.type == "cuda"):
            return False
        return torch.cuda.get_device_capability(case.device) >= (8, 0)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        # The kernel behind torch.nn.attention.varlen, called directly because that function has no
        # dropout. Grouped queries and rows without keys are handled inside.
        query, key = plan.query, plan.key
        assert query is not None
        assert key is not None
        flash = torch.ops.aten._flash_attention_forward
        out: Tensor = flash(
            q, k, v, query.starts, key.starts, query.total, key.total,
            dropout, plan.causal, False, scale=scale,
        )[0]  # fmt: skip
        return out
