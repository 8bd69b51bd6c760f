"""The loss of a set of guesses (DETR, section 3.1): match, then score each pair.

    wanted = make_wanted([{"class_labels": classes, "boxes": boxes}, …])
    parts = set_loss([Guesses(logits, boxes)], wanted, config.SetLoss())
    parts.total.backward()

Costs of all images (and layers) are computed at once where the guesses are, and copied to the CPU
once; there scipy finds the cheapest matching of each image. On a GPU a few objects are matched
where they are, and nothing waits.

Legend: L layers, B images, Q queries, M objects of an image at most, C classes (number C: nothing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.boxes import corners, generalised_iou
from allformer.core.few_matched import MOST, few_matched
from allformer.core.precision import widen
from allformer.errors import ConfigError

NOBODY = -1  # the class of a place without an object


class Guesses(NamedTuple):
    """What the queries say: scores B Q C+1, and boxes B Q 4 (centre and size, as shares)."""

    logits: Tensor
    boxes: Tensor


class Wanted(NamedTuple):
    """What is there: classes B M (−1: no object), boxes B M 4."""

    classes: Tensor
    boxes: Tensor


class Parts(NamedTuple):
    """The loss, and of what it is the weighted sum: means as DETR takes them, over all layers."""

    total: Tensor
    classes: Tensor
    boxes: Tensor
    iou: Tensor


def make_wanted(labels: Sequence[Mapping[str, Tensor]], like: Tensor) -> Wanted:
    """From transformers' form: of each image `class_labels` (N) and `boxes` (N 4)."""
    for i, image in enumerate(labels):
        classes, boxes = image.get("class_labels"), image.get("boxes")
        if classes is None or boxes is None or boxes.shape != (len(classes), 4):
            raise ConfigError(
                f"labels[{i}] must have class_labels (N) and boxes (N × 4: centre x, centre y, "
                f"width, height as shares of the image); give both"
            )
    most = max([len(image["class_labels"]) for image in labels], default=0)
    classes = torch.full((len(labels), most), NOBODY, device=like.device)
    boxes = torch.zeros(len(labels), most, 4, dtype=widen(like).dtype, device=like.device)
    for i, image in enumerate(labels):
        classes[i, : len(image["class_labels"])] = image["class_labels"].to(classes.device)
        boxes[i, : len(image["boxes"])] = image["boxes"].to(boxes)
    return Wanted(classes, boxes)


@torch.no_grad()
def costs(guesses: Guesses, wanted: Wanted, settings: config.SetLoss) -> Tensor:
    """What it costs to give each object to each query, … B Q M."""
    chance = widen(guesses.logits).softmax(-1)
    numbers = wanted.classes.clamp_min(0)[..., None, :].expand(*chance.shape[:-1], -1)
    said = -chance.gather(-1, numbers)  # −p instead of −log p, as the paper has it
    mine, theirs = widen(guesses.boxes)[..., :, None, :], wanted.boxes[..., None, :, :]
    apart = (mine - theirs).abs().sum(-1)
    shared = -generalised_iou(corners(mine), corners(theirs))
    whole = settings.match_box * apart + settings.match_class * said + settings.match_iou * shared
    return whole.nan_to_num(*[torch.finfo(whole.dtype).max] * 3)


def match(guesses: Guesses, wanted: Wanted, settings: config.SetLoss) -> Tensor:
    """The query of each object, … B M; −1 where there is no object, or no query is left for it."""
    table = costs(guesses, wanted, settings)
    flat = table.flatten(0, -3)  # (L·)B Q M
    real = (wanted.classes != NOBODY).expand(*table.shape[:-2], -1).reshape(len(flat), -1)
    if table.is_cuda and fits_device(*flat.shape[1:]):
        given = few_matched(flat.clamp_max(1e9), real)
    else:
        both = torch.cat([flat, real[:, None].to(flat.dtype)], 1).cpu().numpy()  # one wait
        given = torch.from_numpy(cheapest(both[:, :-1], both[:, -1] > 0))
    return given.view(*table.shape[:-2], table.shape[-1]).to(table.device, non_blocking=True)


def fits_device(queries: int, objects: int) -> bool:
    """Whether so many are matched on a GPU without waiting for it."""
    return objects <= min(MOST, queries)


def cheapest(price: Any, real: Any) -> Any:
    """For each table (R queries × objects, of which those that are `real` count): the query of each
    object, so that the sum is least, R objects."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ConfigError(
            "objects are given to queries by scipy; install it: pip install allformer[vision]"
        ) from None
    given = np.full(real.shape, NOBODY, np.int64)
    for row, table, there in zip(given, price, real, strict=True):
        numbers = np.flatnonzero(there)
        if len(numbers):
            queries, objects = linear_sum_assignment(table[:, numbers])
            row[numbers[objects]] = queries
    return given


def set_loss(layers: Sequence[Guesses], wanted: Wanted, settings: config.SetLoss) -> Parts:
    """The loss of the guesses of each layer (one, or several), added up."""
    guesses = Guesses(*(widen(torch.stack(x)) for x in zip(*layers, strict=True)))  # L B Q …
    wide = Wanted(wanted.classes, wanted.boxes.to(guesses.boxes.dtype))
    given = match(guesses, wide, settings)  # L B M
    return score(guesses, wide, given, settings)


def score(guesses: Guesses, wanted: Wanted, given: Tensor, settings: config.SetLoss) -> Parts:
    """The loss where each object has its query, `given` L B M."""
    real = given != NOBODY
    place = given.clamp_min(0)
    found = guesses.boxes.gather(-2, place[..., None].expand(*place.shape, 4))  # L B M 4
    aims = wanted.boxes.expand(found.shape)
    count = (wanted.classes != NOBODY).sum().clamp_min(1)
    apart = ((found - aims).abs().sum(-1) * real).sum() / count
    # Where there is no object, the same box twice: no gradient, and no 0 / 0.
    alike = torch.where(real[..., None], corners(aims), torch.ones_like(aims).cumsum(-1))
    mine = torch.where(real[..., None], corners(found), alike)
    shared = ((1 - generalised_iou(mine, alike)) * real).sum() / count
    named = _class_loss(guesses.logits, wanted.classes, given, settings.nothing)
    total = named + settings.box * apart + settings.iou * shared
    return Parts(total, named.detach(), apart.detach(), shared.detach())


def _class_loss(logits: Tensor, classes: Tensor, given: Tensor, nothing: float) -> Tensor:
    """−Σ w log p / Σ w of each layer, added up; w is 1, or `nothing` without an object."""
    none = logits.shape[-1] - 1
    # One place more than there are queries, for objects without one.
    aims = torch.full((*logits.shape[:-2], logits.shape[-2] + 1), none, device=logits.device)
    place = given.where(given != NOBODY, logits.shape[-2])
    aims = aims.scatter(-1, place, classes.clamp_min(0).expand(given.shape))[..., :-1]
    weights = logits.new_ones(aims.shape).masked_fill(aims == none, nothing)
    said = F.cross_entropy(logits.flatten(0, -2), aims.flatten(), reduction="none")
    said = said.view(aims.shape) * weights
    return (said.sum((-2, -1)) / weights.sum((-2, -1))).sum()
