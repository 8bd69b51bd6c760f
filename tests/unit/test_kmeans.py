"""Centres: as good as scipy's, none idle, the same from the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allformer.audiolm.kmeans import fit_clusters, nearest, seeded
from allformer.errors import ConfigError, DataError


def blobs(count: int = 6, each: int = 80, dim: int = 3) -> torch.Tensor:
    """Clouds of points, far from each other."""
    chance = torch.Generator().manual_seed(4)
    middles = 20 * torch.randn(count, dim, generator=chance, dtype=torch.float64)
    noise = torch.randn(count, each, dim, generator=chance, dtype=torch.float64)
    return (middles[:, None] + noise).flatten(0, 1)


def test_from_the_same_first_centres_lloyd_ends_where_scipy_ends() -> None:
    check_lloyd()


def check_lloyd() -> None:
    """To the last digits."""
    from scipy.cluster.vq import kmeans2

    points = torch.randn(400, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first = seeded(points, 7, torch.Generator().manual_seed(0))
    theirs, _ = kmeans2(points.numpy(), first.numpy(), iter=200, minit="matrix")
    ours = fit_clusters(points, 7, steps=200, seed=0).centres
    assert torch.allclose(ours, torch.from_numpy(theirs), atol=1e-9)


def test_clouds_are_told_apart_whole_and_in_mini_batches() -> None:
    points = blobs()
    for batch in (None, 60):
        found = fit_clusters(points, 6, batch=batch, tries=4, seed=2)
        which = nearest(points, found.centres).view(6, 80)
        assert (which == which[:, :1]).all()
        assert len(which[:, 0].unique()) == 6
        assert found.error < 4  # 3 numbers of variance 1


def test_mini_batches_come_near_to_what_all_points_give() -> None:
    points = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0))
    whole, parts = (fit_clusters(points, 16, batch=b, seed=1).error for b in (None, 300))
    assert parts < 1.05 * whole


@pytest.mark.parametrize("batch", [None, 30])
def test_an_idle_centre_begins_anew_at_the_farthest_point(batch: int | None) -> None:
    check_idle(batch)


def check_idle(batch: int | None = None) -> None:
    """Nothing is near to the last of the first centres."""
    points = blobs(3, 40)
    first = torch.stack([points[0], points[40], points.mean(0) + 1e4])
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr("allformer.audiolm.kmeans.seeded", lambda *_: first)
        found = fit_clusters(points, 3, batch=batch)
    assert len(nearest(points, found.centres).unique()) == 3
    assert found.error < 4


def test_a_seed_decides_and_the_first_centres_are_points() -> None:
    check_seeds()


def check_seeds() -> None:
    """Points that are far from the others are likelier: of six clouds five have one at least."""
    points = blobs()
    same = [fit_clusters(points, 5, seed=3).centres for _ in range(2)]
    assert torch.equal(*same)
    first = seeded(points, 6, torch.Generator().manual_seed(0))
    assert (first[:, None] == points).all(-1).any(1).all()
    found = 0
    for seed in range(20):  # by chance alone four clouds would have one
        first = seeded(points, 6, torch.Generator().manual_seed(seed))
        found += len({int((one == points).all(-1).nonzero()[0]) // 80 for one in first})
    assert found >= 20 * 5


def test_nearest_agrees_with_the_plain_distance() -> None:
    chance = torch.Generator().manual_seed(0)
    points, centres = (torch.randn(n, 6, generator=chance) for n in (500, 9))
    plain = torch.cdist(points, centres).argmin(-1)
    assert torch.equal(nearest(points, centres), plain)


def test_what_cannot_be_is_refused() -> None:
    points = torch.randn(5, 2)
    with pytest.raises(DataError, match="clusters=6 is more than there are points, 5"):
        fit_clusters(points, 6)
    with pytest.raises(ConfigError, match="steps=0"):
        fit_clusters(points, 2, steps=0)
    with pytest.raises(DataError, match="not finite"):
        fit_clusters(torch.full((5, 2), float("nan")), 2)
    with pytest.raises(DataError, match="N × D"):
        fit_clusters(torch.from_numpy(np.zeros(4)), 2)
