"""Cross-entropy of every pixel from the scores of coarser places: never resized all at once.

    loss, nll = pixel_entropy(scores, labels)            # B L H W and B I J → B and B

The scores of an image of 512 × 512 for 150 labels are 150 MiB, and as much again for each step from
them to the loss. A few images at a time are resized, as far as a gradient at the size of the
pixels, ∂loss/∂scores = p − q (q as in `loss.py`), and back: what is kept has the scores' own size.

Legend: B images, L labels, H and W rows and columns of scores, I and J those of pixels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.loss import IGNORE
from allformer.core.precision import widen

_CHUNK = 2**27  # numbers at a time on a GPU: 512 MiB in fp32
_NEAR = 2**22  # on a CPU as few as an image allows, so that they stay near it


def resized(scores: Tensor, size: tuple[int, ...]) -> Tensor:
    """Scores B L H W of another size, in between by straight lines; as they are where it fits."""
    if tuple(scores.shape[2:]) == tuple(size):
        return scores
    return F.interpolate(widen(scores), list(size), mode="bilinear", align_corners=False)


def few(scores: Tensor, size: tuple[int, ...]) -> int:
    """Of how many images the scores are resized at a time."""
    budget = _NEAR if scores.device.type == "cpu" else _CHUNK
    return max(1, budget // max(1, scores.shape[1] * size[0] * size[1]))


def pixel_entropy(scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Of each image the sum over its pixels with labels ≠ −100, smoothed, and as it is.

    `pixel_entropy(torch.zeros(1, 4, 2, 2), torch.zeros(1, 8, 8).long())`: 64 log 4, twice. The
    second result carries no gradient.
    """
    way: Any = _PixelEntropy
    loss, nll = way.apply(scores, labels, smoothing, torch.is_grad_enabled())
    return loss, nll


class _PixelEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, labels: Tensor, smoothing: float, grads: bool
    ) -> tuple[Tensor, Tensor]:
        size, wants = tuple(labels.shape[1:]), grads and ctx.needs_input_grad[0]
        count = few(scores, size)
        losses: list[Tensor] = []
        nlls: list[Tensor] = []
        back: list[Tensor] = []
        for some, these in zip(torch.split(scores, count), torch.split(labels, count), strict=True):
            logp = resized(widen(some), size).log_softmax(1)
            real = these != IGNORE
            safe = these.where(real, 0)[:, None]
            each = -logp.gather(1, safe)[:, 0]
            nlls.append((each * real).sum((1, 2)))
            if smoothing:
                each = (1 - smoothing) * each - smoothing * logp.mean(1)
            losses.append((each * real).sum((1, 2)))
            if wants:
                slope = _slope(logp, safe, real, smoothing)
                back.append(_shrunk(slope, some.shape).to(scores.dtype))
        nll = torch.cat(nlls)
        ctx.save_for_backward(torch.cat(back) if back else None)
        ctx.mark_non_differentiable(nll)
        return torch.cat(losses), nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (back,) = ctx.saved_tensors
        found = None if back is None else back * grads[0][:, None, None, None].to(back.dtype)
        return found, None, None, None


def _slope(logp: Tensor, labels: Tensor, real: Tensor, smoothing: float) -> Tensor:
    """p − q, B L I J, where `logp` was; labels B 1 I J."""
    slope = logp.exp_()
    if smoothing:
        slope.sub_(smoothing / logp.shape[1])
    slope.scatter_add_(1, labels, slope.new_full((), smoothing - 1).expand(labels.shape))
    return slope.mul_(real[:, None])


def _shrunk(slope: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of scores of this shape from that of the resized ones: `resized`, transposed."""
    if slope.shape == shape:
        return slope
    back: Any = torch.ops.aten.upsample_bilinear2d_backward
    found: Tensor = back(slope, list(slope.shape[2:]), list(shape), False)
    return found
