"""Cross-entropy of rows of logits: the loss, and the logits overwritten by their gradient.

A row is read twice, the second time from the cache, and written once: no probabilities in fp32.
Rows are as wide as the chip loads fast, whatever the vocabulary (50,257 is odd): a mask that ends
elsewhere would make every load a load of one number. What is behind the vocabulary is no logit, and
its gradient is 0.

Legend: C rows, V vocabulary, W width of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS, _STAGES = 2048, 4, 3
_ALIGNED = 64
_RUN = tl.constexpr(8)  # numbers that a thread loads at once


@triton.jit
def _entropy(
    logits, targets, loss, nll, V, W, smoothing, z,
    GRADIENT: tl.constexpr, SMOOTHED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * W
    target = tl.load(targets + row)
    runs: tl.constexpr = BLOCK // _RUN
    place = tl.arange(0, runs)[:, None] * _RUN + tl.arange(0, _RUN)[None, :]
    if target < 0:  # no target here
        tl.store(loss + row, 0.0)
        tl.store(nll + row, 0.0)
        if GRADIENT:
            for start in range(0, W, BLOCK):
                zero = tl.zeros([runs, _RUN], logits.dtype.element_ty)
                tl.store(logits + start + place, zero, mask=start + place < W)
    else:
        # Each run keeps its own maximum: threads meet but once, behind the loop.
        high = tl.full([runs], -1e30, tl.float32)
        mass = tl.zeros([runs], tl.float32)
        whole = tl.zeros([runs], tl.float32)
        for start in tl.range(0, W, BLOCK, num_stages=STAGES):
            at = start + place
            x = tl.load(logits + at, mask=at < W, other=0.0).to(tl.float32)
            if SMOOTHED:
                whole += tl.sum(tl.where(at < V, x, 0.0), 1)
            x = tl.where(at < V, x, float("-inf"))
            new = tl.maximum(high, tl.max(x, 1))
            mass = mass * tl.exp(high - new) + tl.sum(tl.exp(x - new[:, None]), 1)
            high = new
        top = tl.max(high, 0)
        lse = top + tl.log(tl.sum(mass * tl.exp(high - top), 0))
        own = tl.load(logits + target).to(tl.float32)
        tl.store(nll + row, lse - own)
        mean = tl.sum(whole, 0) / V
        tl.store(loss + row, lse - (1.0 - smoothing) * own - smoothing * mean + z * lse * lse)
        if GRADIENT:
            tl.debug_barrier()  # everybody has read `own`
            grow = 1.0 + 2.0 * z * lse
            spread = smoothing / V
            for start in tl.range(0, W, BLOCK, num_stages=STAGES):
                at = start + place
                x = tl.load(logits + at, mask=at < W, other=0.0).to(tl.float32)
                d = tl.exp(x - lse) * grow - spread
                d = tl.where(at == target, d - (1.0 - smoothing), d)
                tl.store(logits + at, tl.where(at < V, d, 0.0), mask=at < W)


def entropy_(
    logits: Tensor, vocab: int, targets: Tensor, smoothing: float, z: float, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss and NLL of each row of C W; with `gradient` the logits become ∂loss/∂logits."""
    rows, width = logits.shape
    assert logits.is_contiguous()
    loss, nll = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    block = min(_BLOCK, triton.next_power_of_2(width))
    warps = max(1, min(_WARPS, block // 512))
    _entropy[(rows,)](
        logits, targets, loss, nll, vocab, width, smoothing, z,
        GRADIENT=gradient, SMOOTHED=smoothing > 0, BLOCK=block, STAGES=_STAGES,
        num_warps=warps,
    )  # fmt: skip
    return loss, nll


@torch.library.custom_op("allformer::linear_entropy", mutates_args=())
def linear_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
    smoothing: float, z: float, rows: int, wants: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Summed loss and NLL, and the gradients of hidden, weight and bias that are wanted.

    Weight and bias may be master weights: they are cast to the dtype of hidden here.
    """
    vocab = weight.shape[0]
    half, more = _widened(weight, hidden), None if bias is None else _widened(bias, hidden)
    loss, nll, d_hidden, d_weight, d_bias = _results(hidden, len(half), wants)
    loss.zero_()
    nll.zero_()
    room = hidden.new_empty(min(rows, hidden.shape[0]), len(half))
    for start in range(0, hidden.shape[0], rows):
        h, t = hidden[start : start + rows], targets[start : start + rows]
        logits = room[: h.shape[0]]
        if more is None:
            torch.mm(h, half.t(), out=logits)
        else:
            torch.addmm(more, h, half.t(), out=logits)
        part, part_nll = entropy_(logits, vocab, t, smoothing, z, any(wants))
        loss += part.sum()
        nll += part_nll.sum()
        if wants[0]:
            torch.mm(logits, half, out=d_hidden[start : start + rows])
        if wants[1]:
            _outer(logits, h, d_weight, start > 0)
        if wants[2]:
            sums = logits.sum(0, dtype=torch.float32)
            d_bias.copy_(sums) if start == 0 else d_bias.add_(sums)
    return loss, nll, d_hidden, d_weight[:vocab], d_bias[:vocab]


def _widened(weight: Tensor, hidden: Tensor) -> Tensor:
    """V … in the dtype of hidden, with rows of 0 up to the width that loads fast: W …"""
    vocab = weight.shape[0]
    out = hidden.new_empty(-(-vocab // _ALIGNED) * _ALIGNED, *weight.shape[1:])
    out[:vocab].copy_(weight)
    out[vocab:].zero_()
    return out


def _outer(d_logits: Tensor, h: Tensor, out: Tensor, more: bool) -> None:
    """∂loss/∂W of a chunk, C W and C D → W D, in fp32, on top of what is there if `more`."""
    if not d_logits.is_cuda:  # Triton's interpreter
        product = (d_logits.t() @ h).float()
        out.add_(product) if more else out.copy_(product)
    elif more:
        torch.addmm(out, d_logits.t(), h, out_dtype=torch.float32, out=out)
    else:
        torch.mm(d_logits.t(), h, out_dtype=torch.float32, out=out)


def _results(
    hidden: Tensor, width: int, wants: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def wide(*shape: int) -> Tensor:
        return hidden.new_empty(shape, dtype=torch.float32)

    d_hidden = torch.empty_like(hidden) if wants[0] else hidden.new_empty(0)
    d_weight = wide(width, hidden.shape[1]) if wants[1] else wide(0)
    return wide(), wide(), d_hidden, d_weight, wide(width) if wants[2] else wide(0)


@linear_entropy.register_fake
def _(hidden, weight, bias, targets, smoothing, z, rows, wants):
    return _results(hidden, weight.shape[0], wants)
