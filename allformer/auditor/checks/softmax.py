# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The weights that the second matmul of an attention gets: rows of a softmax, which sum to 1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from allformer.auditor.context import PARTS, Context, check
from allformer.auditor.evidence.positions import not_toeplitz
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


@check(
    "attention.softmax_axis", "mask.after_softmax", "attention.scale", kinds=PARTS,
    also=("positions.bias",),
)  # fmt: skip
def softmax_axis(ctx: Context) -> Iterator[Finding]:
    """Rows sum to 1 over the keys; with a padding mask too."""
    for site in ctx.sites():
        finding = _judge(site)
        if finding is not None:
            yield finding
            return
    for site in _padded(ctx):  # a mask may act only where it is given
        finding = _cut(site) if not _sound(site) else None
        if finding is not None:
            yield finding
            return


def _padded(ctx: Context) -> Iterator[Site]:
    """The attentions of a run in which a mask hides two places, on either side."""
    for side in ctx.one.sides:
        padded = ctx.with_hole(side) if ctx.call.side(side).keeps else None
        if padded is not None:
            yield from ctx.watch(padded[0])[0].sites


def _sums(site: Site) -> Tensor:
    return site.weights.sum(-1)


def _sound(site: Site) -> bool:
    if site.softmax_in.numel() != site.weights.numel():
        return True  # a sink or an extra key: rows need not sum to 1
    sums = _sums(site)
    return _ones_or_blind(sums) or not bool(sums.abs().nan_to_num(0.0).max() > 1e-9)


def _judge(site: Site) -> Finding | None:
    if _sound(site):
        return None
    w, sums = site.weights, _sums(site)
    assert w is not None
    off = float(sums[(sums - 1).abs() == (sums - 1).abs().max()][0])
    shape = tuple(site.softmax_in.shape)
    for axis, name in ((-2, "queries"), (0, "heads")):
        if w.shape[axis] > 1 and _ones_or_blind(w.sum(axis)):
            return Finding(
                "attention.softmax_axis",
                f"the weights sum to 1 over the {name}, not over the keys (row sums reach "
                f"{off:.3g}); softmax of a tensor {shape} over axis {site.softmax_dim}",
                site.where,
            )
    return _cut(site) or _scaled(site) or _biased(site) or Finding(
        "attention.softmax_axis",
        f"row sums of the weights are {float(sums.min()):.3g} … {float(sums.max()):.3g} "
        f"instead of 1; softmax of a tensor {shape} over axis {site.softmax_dim}",
        site.where,
    )  # fmt: skip


def _cut(site: Site) -> Finding | None:
    """Some weights are 0, the others still are what the softmax gave."""
    w, sums = site.weights, _sums(site)
    assert w is not None
    kept = w != 0
    if bool(kept.all()) or not torch.allclose(
        w[kept], torch.softmax(site.masked_in, -1)[kept], atol=1e-6
    ):
        return None
    return Finding(
        "mask.after_softmax",
        f"weights are set to 0 after the softmax: rows sum to {float(sums.min()):.3g} … "
        f"{float(sums.max()):.3g} instead of 1",
        site.where,
    )


def _scaled(site: Site) -> Finding | None:
    """A softmax over the keys, then times one number."""
    factor = float(_sums(site).median())
    if not torch.allclose(
        site.weights, factor * torch.softmax(site.masked_in, -1), atol=1e-6 * abs(factor)
    ):
        return None
    d = site.q.shape[-1]
    root = " = 1/√d_k" if abs(factor * d**0.5 - 1) < 0.02 else ""
    return Finding(
        "attention.scale",
        f"every weight is multiplied by {factor:.4g}{root} after the softmax: rows sum to "
        f"{factor:.4g} instead of 1; a scale belongs before it (head size {d})",
        site.where,
    )


def _biased(site: Site) -> Finding | None:
    """A softmax over the keys, and then something that depends on i − j is added."""
    added = site.weights - torch.softmax(site.masked_in, -1)
    if added.shape[1] != added.shape[2] or added.shape[1] < 4:
        return None
    if not bool(torch.isfinite(added).all()) or not_toeplitz(added)[0] > 1e-6:
        return None
    return Finding(
        "positions.bias",
        f"what distances add is added to the weights, after the softmax: rows sum to "
        f"{float(_sums(site).min()):.3g} … {float(_sums(site).max()):.3g} instead of 1",
        site.where,
    )


def _ones_or_blind(sums: Tensor) -> bool:
    good = (sums - 1).abs() < 1e-3
    return bool((good | (sums.abs() < 1e-9) | ~torch.isfinite(sums)).all()) and bool(good.any())
