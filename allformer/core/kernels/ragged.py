"""Flash attention over rows of unequal length that lie end to end: nothing is padded."""

from __future__ import annotations

from functools import cache

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

    def resumes(self, case: Case) -> bool:
        """Whether causal queries that are fewer than their keys are the last of them."""
        return _ends_together(case.device, case.dtype)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        # The kernel behind torch.nn.attention.varlen, called directly because that function has no
        # dropout. Grouped queries and rows without keys are handled inside.
        query, key = plan.query, plan.key
        assert query is not None
        assert key is not None
        sizes = (query.starts, key.starts, query.total, key.total)
        return _flash(q, k, v, sizes, dropout, plan.causal, scale)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, sizes: tuple[Tensor, Tensor, int, int], dropout: float,
    causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    flash = torch.ops.aten._flash_attention_forward
    out: Tensor = flash(q, k, v, *sizes, dropout, causal, False, scale=scale)[0]
    return out


@cache
def _ends_together(device: torch.device, dtype: torch.dtype) -> bool:
    """Asked of the kernel itself, since PyTorch does not say it: the first of two queries at three
    keys sees two of them."""
    with torch.inference_mode():
        q, k = (torch.zeros(n, 1, 64, device=device, dtype=dtype) for n in (2, 3))
        v = torch.tensor([0.0, 2.0, 7.0], device=device, dtype=dtype)[:, None, None].expand_as(k)
        starts = [torch.tensor([0, n], device=device, dtype=torch.int32) for n in (2, 3)]
        try:
            found = _flash(q, k, v.contiguous(), (starts[0], starts[1], 2, 3), 0.0, True, 1.0)
        except RuntimeError:  # a build without the kernel for such rows
            return False
        return abs(float(found[0, 0, 0]) - 1) < 0.1 and abs(float(found[1, 0, 0]) - 3) < 0.1
