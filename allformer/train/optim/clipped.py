"""A step of an optimiser whose gradient has at most a certain norm, and is finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from allformer.train.optim.settings import Optim


def clipped_step(
    optimizer: Any, settings: Optim, parameters: Iterable[Tensor], norm: Tensor
) -> None:
    """`clipped_step(optimizer, AdamW(clip=1.0), model.parameters(), norm)`; `norm` is that of all
    gradients together. One that is not finite changes nothing."""
    clip = settings.clip
    if settings.clips_inside:
        # It divides by grad_scale and leaves the weights alone where found_inf is set: clipping
        # costs no pass of its own.
        scale = torch.ones_like(norm) if clip is None else (norm / clip).clamp_min(1.0)
        optimizer.grad_scale = scale.float()  # the kernels take no fp64
        optimizer.found_inf = (~norm.isfinite()).float()
        optimizer.step()
        return
    if clip is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    if bool(norm.isfinite()):
        optimizer.step()
