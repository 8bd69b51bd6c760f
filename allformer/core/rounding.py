"""A matrix of weights as few-bit integers and scales: each to its nearest, or with GPTQ.

    q, scale = nearest(weight, bits=4, group=128)
    q, scale = compensated(weight, seen, bits=4, group=128)     # seen: Σ x xᵀ of what it multiplies

`compensated` is GPTQ (Frantar et al., 2022): inputs are rounded one after the other, and what an
input's rounding did to the outputs is made good, as far as can be, by those not yet rounded. Those
that carry most go first; the scales are chosen before, so that the groups stay where they are.

Legend: N outputs, K inputs, G groups of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

REACH = tuple(1.14 - i / 25 for i in range(11))  # tried: how far 8 scales go, in largest weights
LEVELS = {4: 8, 8: 127}  # the largest integer; four bits have −8 and no 8
BLOCK = 128  # inputs rounded before the others hear of it
DAMPING = 0.01  # of the mean of Σ x xᵀ's diagonal (paper, section 3.3)


def fit_group(inputs: int, group: int) -> int:
    """A group that divides the inputs: this one, or a common divisor; else the next below.

    One of fewer than sixteen is as large as its scale: then a scale serves the whole row.
    """
    common = torch.gcd(torch.tensor(inputs), torch.tensor(group)).item()
    below = max(n for n in range(1, min(group, inputs) + 1) if inputs % n == 0)
    best = int(common) if common >= 32 else below
    return best if best >= 16 else inputs


def scales(weight: Tensor, bits: int, group: int, importance: Tensor | None = None) -> Tensor:
    """The best scale of each group, N G: that with the least Σ importance · (w − scale · q)².

    In four bits a scale that cuts the largest weight a little serves the others better. They are
    numbers of bf16, so that they can be stored and multiplied in it; a weight's integer is chosen
    for the scale as it is, so nothing is lost by that.
    """
    w = weight.view(len(weight), -1, group)  # N G group
    top = w.abs().amax(-1).clamp_min(1e-20)
    weigh = torch.ones_like(w[0]) if importance is None else importance.view(-1, group)
    best, least = torch.empty_like(top), torch.full_like(top, torch.inf)
    for part in REACH if bits == 4 else (1.0,):
        scale = (top * part / LEVELS[bits]).bfloat16().to(top.dtype)
        off = (w - _whole(w, scale[..., None], bits) * scale[..., None]).square_()
        loss = off.mul_(weigh).sum(-1)
        better = loss < least
        best, least = torch.where(better, scale, best), torch.where(better, loss, least)
    return best


def _whole(w: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The integers nearest to w / scale."""
    most = LEVELS[bits]
    return (w / scale).round_().clamp_(-most, most - 1 if bits == 4 else most)


def nearest(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Integers N K and scales N G, each weight by itself."""
    scale = scales(weight, bits, group)
    q = _whole(weight.view(len(weight), -1, group), scale[..., None], bits)
    return q.view_as(weight).to(torch.int8), scale


def compensated(weight: Tensor, seen: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Integers N K and scales N G that keep the outputs near; `seen` K K is Σ x xᵀ."""
    scale = scales(weight, bits, group, seen.diagonal())
    order = seen.diagonal().argsort(descending=True)
    root = _root(seen[order][:, order])
    each = scale.repeat_interleave(group, 1)[:, order]  # N K
    w, q = weight[:, order], torch.empty_like(weight)
    for start in range(0, w.shape[1], BLOCK):
        end = min(start + BLOCK, w.shape[1])
        errors = torch.empty_like(w[:, start:end])
        for i in range(start, end):
            q[:, i] = _whole(w[:, i], each[:, i], bits)
            error = (w[:, i] - q[:, i] * each[:, i]) / root[i, i]
            w[:, i + 1 : end] -= error[:, None] * root[i, i + 1 : end]
            errors[:, i - start] = error
        w[:, end:] -= errors @ root[start:end, end:]
    return q[:, order.argsort()].to(torch.int8), scale


def _root(seen: Tensor) -> Tensor:
    """The upper triangle R with Rᵀ R = (Σ x xᵀ)⁻¹; where nothing was seen, nothing is made good."""
    seen = seen.clone()
    mean = seen.diagonal().mean()
    seen.diagonal().add_(DAMPING * mean if mean > 0 else 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(seen))
    root: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return root
