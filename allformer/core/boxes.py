"""Boxes: centre x, centre y, width, height, or corners (left, top, right, below); and how much two
have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.precision import widen


def corners(boxes: Tensor) -> Tensor:
    """… 4, centres and sizes → … 4, corners."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], -1)


def centres(boxes: Tensor) -> Tensor:
    """The inverse of `corners`."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def area(boxes: Tensor) -> Tensor:
    """Of corners, … 4 → …"""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp_min(0)
    return sides[..., 0] * sides[..., 1]


def generalised_iou(a: Tensor, b: Tensor) -> Tensor:
    """GIoU of corners, … 4 and … 4, as they broadcast (Rezatofighi et al., 2019).

        |A ∩ B| / |A ∪ B| − (|C| − |A ∪ B|) / |C|,  C the smallest box around both

    1 for the same box, towards −1 the further apart they are.
    """
    inner = torch.cat(
        [torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])], -1
    )
    outer = torch.cat(
        [torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], -1
    )
    common, around = area(inner), area(outer)
    union = area(a) + area(b) - common
    return common / union - (around - union) / around


def found(logits: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What queries say, … Q C+1 and … Q 4, as scores … Q, classes … Q and corners … Q 4: of each
    the likeliest class but nothing."""
    scores, classes = widen(logits).softmax(-1)[..., :-1].max(-1)
    return scores, classes, corners(widen(boxes))
