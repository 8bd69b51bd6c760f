"""k-means: so many centres that every point is near to one of them.

    found = fit_clusters(points, 256, seed=0)       # N D
    found.centres                                   # K D
    nearest(points, found.centres)                  # N, each 0 … K − 1

Legend: N points, D their numbers, K centres, B points of a mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.precision import widen
from allformer.errors import ConfigError, DataError

_AT_ONCE = 1 << 14  # points that are compared with all centres together
_SEEDS_FROM = 64  # points for each centre, among which the first centres are sought
_SETTLED = 1e-6  # a centre that moves by less of the points' spread stands still


@dataclass(frozen=True)
class Clusters:
    """Where the centres are, the mean squared distance to them, and how long it took."""

    centres: Tensor = field(repr=False)  # K D
    error: float
    steps: int


def fit_clusters(
    points: Tensor,
    clusters: int,
    *,
    batch: int | None = None,
    steps: int = 100,
    tries: int = 1,
    seed: int = 0,
) -> Clusters:
    """The best of `tries`, each from other first centres: `fit_clusters(states, 256, tries=3)`.

    Without a `batch` all points move the centres in every step (Lloyd), until they stand still;
    with one, `batch` points in each of the `steps` (Sculley, 2010). A centre that no point is near
    to begins anew at the point that is farthest from its own.
    """
    _check(
        points, clusters, steps=steps, tries=tries, **({} if batch is None else {"batch": batch})
    )
    points = widen(points)
    found = []
    for number in range(tries):
        chance = torch.Generator().manual_seed(seed + number)
        centres = seeded(points, clusters, chance)
        if batch is None or batch >= len(points):
            centres, taken = _lloyd(points, centres, steps)
        else:
            centres, taken = _mini_batches(points, centres, batch, steps, chance), steps
        error = float(_distances(points, centres)[1].mean())
        found.append(Clusters(centres, error, taken))
    return min(found, key=lambda one: one.error)


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The number of the centre that is nearest to each point: N D, K D → N."""
    return _distances(widen(points), centres)[0]


def seeded(points: Tensor, clusters: int, chance: torch.Generator) -> Tensor:
    """First centres K D, by k-means++ (Arthur and Vassilvitskii, 2007): each one a point, the
    likelier the farther it is from those before it."""
    some = torch.randperm(len(points), generator=chance)[: _SEEDS_FROM * clusters]
    points = points[some.to(points.device)]
    first = int(torch.randint(len(points), (), generator=chance))
    chosen, far = [first], (points - points[first]).square().sum(-1)
    for share in torch.rand(clusters - 1, generator=chance, dtype=torch.float64).tolist():
        ends = far.double().cumsum(0)
        new = min(int(torch.searchsorted(ends, share * ends[-1], right=True)), len(points) - 1)
        chosen.append(new)
        far = far.minimum((points - points[new]).square().sum(-1))
    return points[torch.tensor(chosen, device=points.device)]


def _lloyd(points: Tensor, centres: Tensor, steps: int) -> tuple[Tensor, int]:
    """Each centre becomes the mean of its points, again and again."""
    spread = points.var(0, correction=0).sum()
    taken, moving = 0, True
    while moving and taken < steps:
        which, far = _distances(points, centres)
        sums, counts = _sums(points, which, len(centres))
        new = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        new = _restarted(new, counts == 0, points, far)
        moving = bool((new - centres).square().sum(-1).max() > _SETTLED * _SETTLED * spread)
        centres, taken = new, taken + 1
    return centres, taken


def _mini_batches(
    points: Tensor, centres: Tensor, batch: int, steps: int, chance: torch.Generator
) -> Tensor:
    """Each centre is the mean of all points that were near to it when they came by."""
    seen = points.new_zeros(len(centres))
    since, order = 0, torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(len(points), generator=chance)
        index, order = order[:batch].to(points.device), order[batch:]
        which, far = _distances(points[index], centres)
        sums, counts = _sums(points[index], which, len(centres))
        seen, since = seen + counts, since + batch
        centres = centres + (sums - counts[:, None] * centres) / seen.clamp(min=1)[:, None]
        if since >= len(points):  # all came by once: who saw nothing will see nothing
            idle = seen == 0
            centres = _restarted(centres, idle, points[index], far)
            seen, since = torch.ones_like(seen), 0  # the early ones pulled at other centres
    return centres


def _restarted(centres: Tensor, idle: Tensor, points: Tensor, far: Tensor) -> Tensor:
    """Those that are idle, put where points are farthest from their own centre."""
    where = idle.nonzero()[:, 0]
    if not len(where):
        return centres
    farthest = far.topk(min(len(where), len(points))).indices
    return centres.index_copy(0, where[: len(farthest)], points[farthest])


def _distances(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Of each point the nearest centre, and the square of how far it is."""
    found, lengths = [], centres.square().sum(-1)
    for part in torch.split(points, _AT_ONCE):
        least, which = torch.addmm(lengths, part, centres.T.to(part), alpha=-2).min(-1)
        found.append((which, (least + part.square().sum(-1)).clamp(min=0)))
    numbers, squares = zip(*found, strict=True)
    return torch.cat(numbers), torch.cat(squares)


def _sums(points: Tensor, which: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Of each centre the sum of its points, and how many they are: K D, K.

    As a product, whose order of adding is fixed, unlike that of scattered additions on a GPU.
    """
    sums = points.new_zeros(clusters, points.shape[1])
    counts = points.new_zeros(clusters)
    for part, own in zip(torch.split(points, _AT_ONCE), torch.split(which, _AT_ONCE), strict=True):
        belongs = F.one_hot(own, clusters).to(part)  # B K
        sums += belongs.T @ part
        counts += belongs.sum(0)
    return sums, counts


def _check(points: Tensor, clusters: int, **counts: int) -> None:
    for name, value in {"clusters": clusters, **counts}.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    if points.ndim != 2 or not points.numel():
        raise DataError(f"points={tuple(points.shape)} must be N × D, with one point at least")
    if len(points) < clusters:
        raise DataError(
            f"clusters={clusters} is more than there are points, {len(points)}; try fewer clusters,"
            f" or give more sound"
        )
    if not bool(points.isfinite().all()):
        raise DataError("points have numbers that are not finite; look at the model's states")
