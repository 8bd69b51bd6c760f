# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Whether numbers were drawn: without repeats and without a link to their neighbours.

Frequencies, slopes, waves and masks have one or the other.
"""

from __future__ import annotations

from torch import Tensor, nn


def looks_random(table: Tensor) -> bool:
    """A table of at least 8 × 8 numbers, or a row of at least 24."""
    flat = table.detach().squeeze().double()
    if not table.is_floating_point() or not bool(flat.isfinite().all()):
        return False
    if flat.unique().numel() < 0.99 * flat.numel():
        return False
    if flat.ndim == 1:
        return flat.numel() >= 24 and _row(flat)
    if flat.ndim != 2 or min(flat.shape) < 8:
        return False
    return all(_link(side) < 2 / side.shape[0] ** 0.5 for side in (flat, flat.mT))


def _row(x: Tensor) -> bool:
    """As many turning points as chance has, 2/3 of the places, and no link two or three on."""
    n = x.numel()
    steps = x.diff().sign()
    turns = int((steps[1:] != steps[:-1]).sum())
    sure = abs(turns - 2 * (n - 2) / 3) < 2.5 * ((16 * n - 29) / 90) ** 0.5
    centred = x - x.mean()
    links = [
        float((centred[i:] * centred[: n - i]).sum() / centred.square().sum()) for i in (1, 2, 3)
    ]
    return sure and max(map(abs, links)) < 2.5 / n**0.5


def _link(table: Tensor) -> float:
    """The mean size of the correlation of a row's neighbours, column by column."""
    a, b = table[:-1] - table[:-1].mean(0), table[1:] - table[1:].mean(0)
    r = (a * b).sum(0) / (a.square().sum(0) * b.square().sum(0)).sqrt().clamp(min=1e-30)
    return float(r.abs().mean())


def fresh(module: nn.Module) -> bool:
    """Whether the vectors (norms, biases) still are what they began with."""
    vectors = [p for p in module.parameters() if p.ndim == 1 and p.numel() > 1]
    if not vectors:
        return True
    constant = [bool((p == p[0]).all()) for p in vectors]
    small = [bool(p.abs().max() <= 1.0) for p in vectors]  # torch draws a Linear's bias
    gains = [p for p in vectors if float(p.mean()) > 0.5]
    return all(bool((p == p[0]).all()) for p in gains) and all(
        c or s for c, s in zip(constant, small, strict=True)
    )
