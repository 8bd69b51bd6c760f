"""A module that takes images: how they are cut into patches, and how many there must be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from allformer.auditor.calls import Call
from allformer.auditor.infer.attempt import attempt
from allformer.auditor.pictures import Picture
from allformer.auditor.probe import duplicate

SIDES = (4, 3, 7, 14, 8, 2)  # patches along one side, where nothing says how many
MOST = 24  # calls that are tried


def images(plan: Call, module: nn.Module, twin: Any) -> bool:
    """Find a size of images with which it runs; then a patch is what a token is elsewhere."""
    if plan.user is not None or plan.has_source or plan.kind in ("decoder", "seq2seq"):
        return False
    before = plan.x.ids, plan.x.width, plan.slots, plan.length
    plan.x.ids, plan.slots = False, []
    tried = 0
    for picture in dict.fromkeys(_cuts(module)):
        for side in dict.fromkeys((*_sides(module, picture), *SIDES)):
            tried += 1
            plan.x.width, plan.x.picture, plan.length = picture.width, picture, side**2
            if tried > MOST:
                break
            # on a copy: windows that an image is too small for may stay small (Swin)
            if attempt(plan, duplicate(twin), plan.batch(3)) is not None:
                size = f"{picture.channels}×{side * picture.patch}×{side * picture.patch}"
                patch = f"{picture.patch}×{picture.patch}"
                plan.notes.append(f"called with images of {size}, as {side**2} patches of {patch}")
                return True
    plan.x.picture = None
    plan.x.ids, plan.x.width, plan.slots, plan.length = before
    return False


def sees_images(module: nn.Module) -> bool:
    """Whether it begins with a convolution over a plane."""
    return any(isinstance(m, nn.Conv2d) and m.in_channels <= 4 for m in module.modules())


def _cuts(module: nn.Module) -> Iterator[Picture]:
    """By the first convolution; else by the number that the first linear map or norm takes."""
    for m in module.modules():
        if isinstance(m, nn.Conv2d) and m.in_channels <= 4:
            yield Picture(m.in_channels, int(m.stride[0]))
            return
    firsts = [m for m in module.modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    for m in firsts[:3]:
        width = m.in_features if isinstance(m, nn.Linear) else math.prod(m.normalized_shape)
        for channels in (3, 1):
            patch = math.isqrt(width // channels)
            if patch > 1 and channels * patch**2 == width:
                yield Picture(channels, patch)


def _sides(module: nn.Module, picture: Picture) -> Iterator[int]:
    """Patches along a side, from the lengths of tables of positions and the size it states."""
    for m in module.modules():
        config = getattr(m, "config", None)
        for holder in (m, config):
            size = getattr(holder, "image_size", None)
            if isinstance(size, int) and size % picture.patch == 0 and size // picture.patch <= 16:
                yield size // picture.patch
    tables = [p for p in (*module.parameters(), *module.buffers()) if p.ndim in (2, 3)]
    for table in tables:
        for extra in (0, 1, 2):  # [CLS], and a token of distillation
            side = math.isqrt(max(0, table.shape[-2] - extra))
            if 2 <= side <= 16 and side**2 == table.shape[-2] - extra and table.shape[-1] > 2:
                yield side
