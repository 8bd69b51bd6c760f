"""torch's fused attention on grids: flash, cuDNN, memory-efficient or its own, as torch chooses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.attend import mix, to_heads
from allformer.core.compiling import constant
from allformer.core.dropout import drop
from allformer.core.fused import prepared
from allformer.core.kernels.kernel import Case, Plan
from allformer.core.kernels.whole import whole_rows, whole_serves
from allformer.core.look import Look, make_look
from allformer.core.matmul import onednn_is_faster

SHORT = 256  # queries and keys: of more, both take as long (AMD EPYC, Zen 5)
FEW = 16  # queries of a head: those of a step, beams among them


class SDPA:
    """`F.scaled_dot_product_attention`; training on an H100 or later, cuDNN's kernel of the same,
    which torch would choose last; of whole rows on a CPU a compiled one."""

    ragged = False
    whole = False

    def fits(self, case: Case) -> bool:
        return case.asked == "fast"

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        look = plan.look
        assert look is not None
        if _cudnn_serves(q, k, look, dropout):
            return _cudnn(q, k, v, look.causal, scale)
        if whole_serves(q, k, look, dropout):
            return whole_rows(q, k, v, scale, look.causal)
        if dropout and q.device.type == "cpu" and not torch.compiler.is_compiling():
            out = _dropped(q, k, v, look, scale, dropout)
            return out if look.blind is None else out.masked_fill(look.blind, 0.0)
        shape, gqa, dtype = q.shape, q.shape[1] != k.shape[1], q.dtype
        if _wider_is_faster(q, k):
            q, k, v = q.float(), k.float(), v.float()
        mask = look.merged if look.bias is None or look.merged is None else look.merged.to(q.dtype)
        if gqa and mask is not None and q.shape[2] <= FEW:
            # torch's kernels that take a mask know no groups: it would write every key out again
            # for each head that reads it. So the heads of a group ask side by side.
            mask, gqa = _folded(mask, k.shape[1], q.shape[1]), False
            q = q.reshape(len(q), k.shape[1], -1, q.shape[3])
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=look.causal, scale=scale,
            enable_gqa=gqa,
        ).reshape(shape).to(dtype)  # fmt: skip
        return out if look.blind is None else out.masked_fill(look.blind, 0.0)


def _wider_is_faster(q: Tensor, k: Tensor) -> bool:
    """Short rows in bf16 on AMD's processors: torch's kernel asks MKL for each little product,
    which takes up to six times as long there for bf16 as for fp32, backward above all."""
    return (
        q.dtype == torch.bfloat16
        and q.device.type == "cpu"
        and FEW < q.shape[2] <= SHORT  # of a few queries the keys are what is read
        and k.shape[2] <= SHORT
        and not torch.compiler.is_compiling()
        and onednn_is_faster()
    )


def _dropped(q: Tensor, k: Tensor, v: Tensor, look: Look, scale: float, dropout: float) -> Tensor:
    """The formula: on a CPU no kernel of torch's drops weights out, and its own form of it goes
    over them more often, to look for rows that are forbidden as a whole."""
    scores = (q * scale) @ to_heads(k, q.shape[1]).transpose(-2, -1)
    if look.causal:
        look = make_look(look.full_mask(q.shape[2], k.shape[2], q.device))
    if look.merged is not None:
        added = look.summed(q.dtype).merged
        assert added is not None
        scores = scores.add_(added.to(q.dtype))
    return mix(drop(scores.softmax(dim=-1), dropout), v)


def _folded(mask: Tensor, groups: int, heads: int) -> Tensor:
    """R 1|H T S → R 1|G (H/G)·T S, where 1 may stand for all that are alike."""
    if mask.shape[1] != 1:
        return mask.reshape(mask.shape[0], groups, -1, mask.shape[3])
    return mask if mask.shape[2] == 1 else mask.repeat(1, 1, heads // groups, 1)


def _cudnn_serves(q: Tensor, k: Tensor, look: Look, dropout: float) -> bool:
    """What cuDNN does faster than flash (docs/results.md): no mask, no dropout, heads of 64 or 128,
    on Hopper, more queries than one, sizes that come again (it plans for each anew). All else is
    torch's choice."""
    plain = look.merged is None and not dropout and type(q) is Tensor
    if not (q.is_cuda and plain and q.shape[-2] > 1 and prepared()):
        return False
    half = q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] in (64, 128)
    return half and _has_cudnn() and torch.cuda.get_device_capability(q.device)[0] == 9


@constant
def _has_cudnn() -> bool:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    allowed: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    return version is not None and version >= 90_000 and allowed


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    # Asked for by its name: a preference can be told to torch by a context only, which a compiled
    # graph does not take.
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    out: Tensor = attention(q, k, v, None, True, 0.0, causal, False, scale=scale)[0]
    return out
