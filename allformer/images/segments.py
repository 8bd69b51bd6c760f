"""From scores to maps: what each pixel shows, or to which segment it belongs.

The numbers are those of transformers' `EomtImageProcessor.post_process_…_segmentation`.

Legend: Q queries, L labels, H and W of scores, I and J of the image itself, K segments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.images.pieces import Ends, filled
from allformer.images.sizes import Size, resized

NOBODY = -1  # in a map: of no segment


class Found(NamedTuple):
    """A map I J of the numbers of segments (−1: none), and of each its label and score."""

    ids: Tensor
    labels: list[int]
    scores: list[float]


def scaled(planes: Tensor, size: Sequence[int]) -> Tensor:
    """Planes N H W of another size, in between by straight lines."""
    return F.interpolate(planes[None], list(size), mode="bilinear", align_corners=False)[0]


def query_scores(masks: Tensor, classes: Tensor, size: Size) -> Tensor:
    """Q H W masks and Q L+1 classes of an image, as scores → L H' W': of each place and label."""
    wide = scaled(masks, filled(size)).sigmoid()
    return torch.einsum("qc,qhw->chw", classes.softmax(-1)[:, :-1], wide)


def joined(scores: Sequence[Tensor], ends: Ends, image: tuple[int, int], size: Size) -> Tensor:
    """The scores of an image's pieces as one, L I J: the mean where they overlap."""
    height, width = resized(size, *image)
    total = scores[0].new_zeros(scores[0].shape[0], height, width)
    times = scores[0].new_zeros(1, height, width)
    for piece, (first, last) in zip(scores, ends, strict=True):
        along = slice(first, last)
        place = (slice(None), along) if image[0] > image[1] else (slice(None), slice(None), along)
        total[place] += piece
        times[place] += 1
    return scaled(total / times.clamp(min=1), image)


def unfilled(masks: Tensor, image: tuple[int, int], size: Size) -> Tensor:
    """Q H W masks of an image that was filled up → Q I J of the image itself."""
    height, width = resized(size, *image)
    return scaled(scaled(masks, filled(size))[:, :height, :width], image)


def instances(masks: Tensor, classes: Tensor, threshold: float = 0.8) -> Found:
    """Q I J masks and Q L+1 classes, as scores → segments that may lie over each other; in the map
    the later ones lie above. The score is that of the class by that of the mask's pixels."""
    best, labels = classes.softmax(-1)[:, :-1].max(-1)
    inside = masks > 0
    sure = (masks.sigmoid() * inside).flatten(1).sum(1) / (inside.flatten(1).sum(1) + 1e-6)
    scores = best * sure
    keep = inside.flatten(1).any(1) & (scores >= threshold)
    ids = torch.full(masks.shape[1:], NOBODY, device=masks.device)
    for number, query in enumerate(keep.nonzero()[:, 0].tolist()):
        ids[inside[query]] = number
    return Found(ids, labels[keep].tolist(), scores[keep].tolist())


def panoptic(
    masks: Tensor,
    classes: Tensor,
    threshold: float = 0.8,
    mask_threshold: float = 0.5,
    overlap: float = 0.8,
    stuff: Collection[int] = (),
) -> Found:
    """Q I J masks and Q L+1 classes, as scores → each pixel in one segment at most.

    A query counts with a score above `threshold`. A segment counts if of the pixels where its mask
    is at least `mask_threshold` a share above `overlap` is not taken by others. Segments of a class
    of `stuff` are one.
    """
    scores, labels = classes.softmax(-1).max(-1)
    keep = (labels != classes.shape[-1] - 1) & (scores > threshold)
    masks, scores, labels = masks[keep].sigmoid(), scores[keep], labels[keep]
    ids = torch.full(masks.shape[1:], NOBODY, device=masks.device)
    found = Found(ids, [], [])
    if not len(masks):
        return found
    owner = (scores[:, None, None] * masks).argmax(0)
    numbers: dict[int, int] = {}  # of stuff
    told = zip(labels.tolist(), scores.tolist(), strict=True)
    for query, (label, score) in enumerate(told):
        own, whole = owner == query, masks[query] >= mask_threshold
        seen = own & whole
        counts = torch.stack([own.sum(), whole.sum(), seen.sum()]).tolist()
        share = float(np.float32(counts[0]) / np.float32(counts[1] or 1))  # in fp32, as there
        if not all(counts) or not share > overlap:
            continue
        number = numbers.get(label, len(found.labels))
        ids[seen] = number
        if number == len(found.labels):
            found.labels.append(label)
            found.scores.append(score)
        if label in stuff:
            numbers[label] = number
    return found
