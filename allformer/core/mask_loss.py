"""What masks without an order cost: the cheapest pairs first, then the loss of the pairs.

    costs = mask_costs(masks, classes, mask_labels, class_labels, MaskLoss())
    costs.total(MaskLoss())

Predictions and targets are compared at random points (Cheng et al., 2021, section 3.3): the same
for all pairs to choose among, and for the loss more where a mask is not sure of itself.

Legend: B images, Q queries, M targets of an image, N pairs, P points, H and W of masks, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.precision import widen
from allformer.errors import ConfigError

Pair = tuple[Tensor, Tensor]  # numbers of predictions and of targets, N each


class Costs(NamedTuple):
    """The three losses, before their weights."""

    classes: Tensor
    mask: Tensor
    dice: Tensor

    def total(self, weights: config.MaskLoss) -> Tensor:
        """Their weighted sum."""
        return weights.classes * self.classes + weights.mask * self.mask + weights.dice * self.dice


def mask_costs(
    masks: Tensor,
    classes: Tensor,
    mask_labels: Sequence[Tensor],
    class_labels: Sequence[Tensor],
    settings: config.MaskLoss,
) -> Costs:
    """The losses of B Q H W mask scores and B Q L+1 class scores (the last: nothing).

    Targets are, for each image, M masks of 0 and 1 (of any one size) and their M classes.
    """
    masks, classes = widen(masks), widen(classes)
    _check(masks, classes, mask_labels, class_labels)
    wanted = [x.to(masks.device, masks.dtype) for x in mask_labels]
    named = [x.to(masks.device) for x in class_labels]
    pairs = find_pairs(masks, classes, wanted, named, settings)
    count = max(1, sum(len(x) for x in named))
    return Costs(_class_loss(classes, named, pairs, settings.nothing),
                 *_mask_losses(masks, wanted, pairs, settings, count))  # fmt: skip


@torch.no_grad()
def find_pairs(
    masks: Tensor,
    classes: Tensor,
    mask_labels: Sequence[Tensor],
    class_labels: Sequence[Tensor],
    settings: config.MaskLoss,
) -> list[Pair]:
    """For each image, which prediction stands for which target: the cheapest choice in all."""
    tables = []
    for scores, guess, wanted, named in zip(masks, classes, mask_labels, class_labels, strict=True):
        where = _anywhere(masks[:1], settings.points)
        points = sample(scores[:, None], where.expand(len(scores), -1, -1))  # Q P
        labels = sample(wanted[:, None], where.expand(len(wanted), -1, -1))  # M P
        table = (
            settings.mask * _pixel_cost(points, labels)
            - settings.classes * guess.softmax(-1)[:, named]  # 1 − p, but for the 1
            + settings.dice * _dice_cost(points, labels)
        )
        most = torch.finfo(table.dtype).max  # of what is no number: taken last
        tables.append(table.nan_to_num(nan=most, posinf=most, neginf=most))
    return _assigned(tables)


def _pixel_cost(points: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of each prediction with each target, the mean over points: Q M."""
    yes, no = F.softplus(-points), F.softplus(points)  # −log σ(x), −log(1 − σ(x))
    return (yes @ labels.T + no @ (1 - labels).T) / points.shape[1]


def _dice_cost(points: Tensor, labels: Tensor) -> Tensor:
    """1 − 2 |x ∩ y| / (|x| + |y|), both smoothed by 1: Q M."""
    p = points.sigmoid()
    both = 2 * (p @ labels.T)
    return 1 - (both + 1) / (p.sum(-1)[:, None] + labels.sum(-1)[None] + 1)


def _assigned(tables: list[Tensor]) -> list[Pair]:
    """The cheapest pairs of each table, Q M; the device is waited for once."""
    solve = _solver()
    flat = torch.cat([table.flatten() for table in tables]).cpu()
    parts = torch.split(flat, [table.numel() for table in tables])
    found: list[Pair] = []
    for table, part in zip(tables, parts, strict=True):
        rows, columns = solve(part.view(table.shape).numpy())
        pair = (torch.as_tensor(rows), torch.as_tensor(columns))
        found.append((pair[0].to(table.device), pair[1].to(table.device)))
    return found


def _solver() -> Any:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ConfigError(
            "predictions are matched with targets by scipy; install it: "
            "pip install allformer[vision]"
        ) from None
    return linear_sum_assignment


def _class_loss(
    classes: Tensor, named: Sequence[Tensor], pairs: list[Pair], nothing: float
) -> Tensor:
    """Cross-entropy over all queries; those without a target shall say so, with less weight."""
    rows, queries, last = *classes.shape[:2], classes.shape[2] - 1
    wanted = torch.full((rows, queries), last, device=classes.device)
    for row, labels, (mine, theirs) in zip(wanted, named, pairs, strict=True):
        row[mine] = labels[theirs]
    weight = classes.new_ones(last + 1)
    weight[last] = nothing
    return F.cross_entropy(classes.transpose(1, 2), wanted, weight)


def _mask_losses(
    masks: Tensor, wanted: Sequence[Tensor], pairs: list[Pair], settings: config.MaskLoss,
    count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By pixels and by overlap: sums over the pairs, by the number of targets."""
    scores = torch.cat([x[mine] for x, (mine, _) in zip(masks, pairs, strict=True)])[:, None]
    labels = torch.cat([y[theirs] for y, (_, theirs) in zip(wanted, pairs, strict=True)])[:, None]
    if not len(scores):
        return scores.sum(), scores.sum()
    with torch.no_grad():
        where = unsure_points(scores, settings)
        aims = sample(labels, where)  # N P
    points = sample(scores, where)
    mask = F.binary_cross_entropy_with_logits(points, aims, reduction="none").mean(1).sum()
    p = points.sigmoid()
    dice = 1 - (2 * (p * aims).sum(-1) + 1) / (p.sum(-1) + aims.sum(-1) + 1)
    return mask / count, dice.sum() / count


def unsure_points(scores: Tensor, settings: config.MaskLoss) -> Tensor:
    """Points of each mask of N 1 H W, N P 2: the least sure of many, and some anywhere."""
    total = settings.points
    unsure = int(settings.importance * total)
    where = _anywhere(scores, int(total * settings.oversample))
    sure = sample(scores, where).abs()
    chosen = (-sure).topk(unsure, dim=1).indices[..., None].expand(-1, -1, 2)
    where = where.gather(1, chosen)
    if unsure == total:
        return where
    return torch.cat([where, _anywhere(scores, total - unsure)], 1)


def _anywhere(planes: Tensor, count: int) -> Tensor:
    """Random places of each plane, N P 2."""
    return torch.rand(len(planes), count, 2, device=planes.device).to(planes.dtype)


def sample(planes: Tensor, where: Tensor) -> Tensor:
    """The values of planes N 1 H W at places N P 2 (x, y from 0 to 1), between pixels: N P."""
    grid = 2 * where[:, :, None] - 1
    found = F.grid_sample(planes, grid, mode="bilinear", align_corners=False)  # N 1 P 1
    return found[:, 0, :, 0]


def _check(
    masks: Tensor, classes: Tensor, mask_labels: Sequence[Tensor], class_labels: Sequence[Tensor]
) -> None:
    """Refuse targets that are not what the predictions are compared with."""
    if len(mask_labels) != len(masks) or len(class_labels) != len(masks):
        raise ConfigError(
            f"mask_labels of {len(mask_labels)} and class_labels of {len(class_labels)} images, "
            f"but there are {len(masks)}; give a tensor of masks and one of classes for each"
        )
    sizes = {tuple(x.shape[1:]) for x in mask_labels}
    for i, (found, named) in enumerate(zip(mask_labels, class_labels, strict=True)):
        if found.ndim != 3 or named.ndim != 1 or len(found) != len(named) or len(sizes) > 1:
            raise ConfigError(
                f"mask_labels[{i}]={tuple(found.shape)} and class_labels[{i}]="
                f"{tuple(named.shape)} must be masks × height × width, of one size for all "
                f"images, and a class for each mask"
            )
        if (
            found.device.type == "cpu"
            and len(named)
            and not 0 <= int(named.min()) <= int(named.max()) < classes.shape[2] - 1
        ):
            raise ConfigError(
                f"class_labels[{i}] has {named.tolist()[:8]}, but there are 0 … "
                f"{classes.shape[2] - 2}; correct it"
            )
