"""Cross-entropy of rows of logits: the loss, and the logits overwritten by their gradient.

A row is read twice, the second time from the cache, and written once: no probabilities in fp32.

Legend: C rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 8192, 16
_ALIGNED = 64


@triton.jit
def _entropy(
    logits, targets, loss, nll, V, step, smoothing, z,
    GRADIENT: tl.constexpr, SMOOTHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * step
    target = tl.load(targets + row)
    place = tl.arange(0, BLOCK)
    if target < 0:  # no target here
        tl.store(loss + row, 0.0)
        tl.store(nll + row, 0.0)
        if GRADIENT:
            for start in range(0, V, BLOCK):
                zero = tl.zeros([BLOCK], logits.dtype.element_ty)
                tl.store(logits + start + place, zero, mask=start + place < V)
    else:
        high = float("-inf")
        mass = tl.zeros([BLOCK], tl.float32)
        whole = tl.zeros([BLOCK], tl.float32)
        for start in range(0, V, BLOCK):
            there = start + place < V
            x = tl.load(logits + start + place, mask=there, other=float("-inf")).to(tl.float32)
            new = tl.maximum(high, tl.max(x, 0))
            safe = tl.where(new == float("-inf"), 0.0, new)  # nothing but −inf so far
            mass = mass * tl.exp(high - safe) + tl.exp(x - safe)
            high = new
            if SMOOTHED:
                whole += tl.where(there, x, 0.0)
        lse = high + tl.log(tl.sum(mass, 0))
        own = tl.load(logits + target).to(tl.float32)
        tl.store(nll + row, lse - own)
        mean = tl.sum(whole, 0) / V
        tl.store(loss + row, lse - (1.0 - smoothing) * own - smoothing * mean + z * lse * lse)
        if GRADIENT:
            tl.debug_barrier()  # everybody has read `own`
            grow = 1.0 + 2.0 * z * lse
            spread = smoothing / V
            for start in range(0, V, BLOCK):
                at = start + place
                x = tl.load(logits + at, mask=at < V, other=0.0).to(tl.float32)
                d = tl.exp(x - lse) * grow - spread
                d = tl.where(at == target, d - (1.0 - smoothing), d)
                tl.store(logits + at, d, mask=at < V)


def entropy_(
    logits: Tensor, targets: Tensor, smoothing: float, z: float, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss and NLL of each row of C V; with `gradient` the logits become ∂loss/∂logits."""
    rows, vocab = logits.shape
    loss, nll = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    warps = max(1, min(_WARPS, block // 512))
    _entropy[(rows,)](
        logits, targets, loss, nll, vocab, logits.stride(0), smoothing, z,
        GRADIENT=gradient, SMOOTHED=smoothing > 0, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return loss, nll


@torch.library.custom_op("allformer::linear_entropy", mutates_args=())
def linear_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
    smoothing: float, z: float, rows: int, wants: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Summed loss and NLL, and the gradients of hidden, weight and bias that are wanted."""
    loss, nll, d_hidden, d_weight, d_bias = _results(hidden, weight, wants)
    loss.zero_()
    nll.zero_()
    vocab = weight.shape[0]
    # Rows begin where the chip loads fast, whatever the vocabulary (50,257 is odd).
    room = hidden.new_empty(min(rows, hidden.shape[0]), -(-vocab // _ALIGNED) * _ALIGNED)
    for start in range(0, hidden.shape[0], rows):
        h, t = hidden[start : start + rows], targets[start : start + rows]
        logits = room[: h.shape[0], :vocab]
        torch.mm(h, weight.t(), out=logits)
        if bias is not None:
            logits += bias
        part, part_nll = entropy_(logits, t, smoothing, z, any(wants))
        loss += part.sum()
        nll += part_nll.sum()
        if wants[0]:
            torch.mm(logits, weight, out=d_hidden[start : start + rows])
        if wants[1]:
            _outer(logits, h, d_weight, start > 0)
        if wants[2]:
            sums = logits.sum(0, dtype=torch.float32)
            d_bias.copy_(sums) if start == 0 else d_bias.add_(sums)
    return loss, nll, d_hidden, d_weight, d_bias


def _outer(d_logits: Tensor, h: Tensor, out: Tensor, more: bool) -> None:
    """∂loss/∂W of a chunk, C V and C D → V D, in fp32, on top of what is there if `more`."""
    if not d_logits.is_cuda:  # Triton's interpreter
        product = (d_logits.t() @ h).float()
        out.add_(product) if more else out.copy_(product)
    elif more:
        torch.addmm(out, d_logits.t(), h, out_dtype=torch.float32, out=out)
    else:
        torch.mm(d_logits.t(), h, out_dtype=torch.float32, out=out)


def _results(
    hidden: Tensor, weight: Tensor, wants: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def wide(*shape: int) -> Tensor:
        return hidden.new_empty(shape, dtype=torch.float32)

    d_hidden = torch.empty_like(hidden) if wants[0] else hidden.new_empty(0)
    d_weight = wide(*weight.shape) if wants[1] else wide(0)
    d_bias = wide(weight.shape[0]) if wants[2] else wide(0)
    return wide(), wide(), d_hidden, d_weight, d_bias


@linear_entropy.register_fake
def _(hidden, weight, bias, targets, smoothing, z, rows, wants):
    return _results(hidden, weight, wants)
