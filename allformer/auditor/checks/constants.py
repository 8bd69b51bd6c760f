"""Masks that are a small number: added to the scores, or put in their place.

    scores + keep.float()                     # 0 and 1 hide nothing
    scores.masked_fill(blocked, -10.0)        # hides until scores grow
    scores * keep                             # 0 is a score like any other

Seen in the operators: the softmax's input less Q·Kᵀ times its scale is 0 but for one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

SMALL = -1e3  # what is below hides at ordinary scores: `mask.finite` grows them


@dataclass
class Constant:
    """One number that was added to some scores, or put in their place."""

    value: float
    added: bool
    where: Tensor  # N T S


def constant(site: Site) -> Constant | None:
    """The number that a mask is made of, if it is one finite number."""
    if site.softmax_in is None or site.learned_scale or site.learned_bias:
        return None
    if site.softmax_dim not in (-1, site.softmax_in.ndim - 1):
        return None
    if site.softmax_in.numel() != site.scores.numel():
        return None
    after = site.scale / (site.q_tag.factor * site.k_tag.factor)  # than the product
    given, bare = (_apart(site, x).double() for x in (site.softmax_in, site.scores))
    bare = bare * after
    if not bool(torch.isfinite(given).all()):
        return None
    gap = given - bare
    close = 1e-5 * (1 + float(bare.abs().max()))  # fp32 in between
    touched = gap.abs() > close
    if not bool(touched.any()) or bool(touched.all()):
        return None
    for values, added in ((gap[touched], True), (given[touched], False)):
        if float(values.max() - values.min()) < close:
            return Constant(float(values.median()), added, touched)
    return None


def _apart(site: Site, x: Tensor) -> Tensor:
    """N T S, as the softmax has it: query heads of one key head may be one matmul's rows."""
    assert site.softmax_in is not None
    return x.reshape(-1, *site.softmax_in.shape[-2:])


def finite_value(site: Site) -> float | None:
    """The one number that later keys have as their score, or the negative one added to it.

    Not a huge one: what leaks past that leaks for another reason.
    """
    found = constant(site)
    small = found is not None and found.value > SMALL and (not found.added or found.value < -0.5)
    if found is not None and small and _causal(found):
        return found.value
    if site.softmax_in is None or site.softmax_in.shape[-1] != site.softmax_in.shape[-2]:
        return None
    given = _apart(site, site.softmax_in).double()  # a soft cap after the mask: −20 everywhere
    later = torch.ones(given.shape[1:], dtype=torch.bool).triu(1).expand_as(given)
    low, high = (float(given[later].min()), float(given[later].max())) if later.any() else (0, 1)
    one = high - low < 1e-9 * (1 + abs(high)) and float(given[~later].std()) > 1e-3
    return high if one and abs(high) < -SMALL else None


def _causal(found: Constant) -> bool:
    """All later keys have the number, and none has it at itself; a window may hide more."""
    later = torch.ones(found.where.shape[1:], dtype=torch.bool).triu(1)
    own = found.where.diagonal(dim1=-2, dim2=-1)
    return bool((found.where | ~later).all()) and not bool(own.any())


@check("mask.ambiguous", "mask.finite", kinds=PARTS)
def constants(ctx: Context) -> Iterator[Finding]:
    """Where later tokens or padding are, no small number stands in for −inf."""
    known = False
    for what, sites, hidden in _runs(ctx):
        for site in sites:
            found = constant(site)
            if found is None:
                continue
            known = True
            blocked = hidden.expand_as(found.where)
            inside, outside = torch.equal(found.where, blocked), torch.equal(found.where, ~blocked)
            inside |= what == "later tokens" and _causal(found)
            if found.added and abs(found.value - 1) < 1e-4 and (inside or outside):
                yield _ambiguous(site, what, found, hidden)
                return
            if not inside or found.value <= SMALL:
                continue
            # what is put in place of scores is a mask, whatever its number; unless it is cut later
            if found.value < -0.5 or (not found.added and _weight(site, hidden) > 1e-9):
                yield _finite(site, what, found, hidden)
                return
    if not known:
        raise NotApplicable("no single number is added to the scores, or put in their place")


def _weight(site: Site, hidden: Tensor) -> float:
    assert site.weights is not None
    weights = _apart(site, site.weights)
    return float(weights[hidden.expand_as(weights)].max())


def _ambiguous(site: Site, what: str, found: Constant, hidden: Tensor) -> Finding:
    return Finding(
        "mask.ambiguous",
        site.where,
        f"a mask of 0 and 1 is added to the scores ({int(found.where[0].sum())} of "
        f"{found.where[0].numel()} pairs get + 1): {what} still get a weight of up to "
        f"{_weight(site, hidden):.2g}",
    )


def _finite(site: Site, what: str, found: Constant, hidden: Tensor) -> Finding:
    how = f"lowered by {-found.value:.4g}" if found.added else f"{found.value:.4g}, not −inf"
    return Finding(
        "mask.finite",
        site.where,
        f"hidden scores are {how}: {what} still get a weight of up to {_weight(site, hidden):.2g}",
    )


def _runs(ctx: Context) -> Iterator[tuple[str, list[Site], Tensor]]:
    """(what should be hidden, the attentions of a run, T S: where that is)."""
    n = ctx.positions()
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    yield "later tokens", [s for s in ctx.seen.sites if _shape(s) == (n, n)], later
    for side in ctx.one.sides:
        padded = ctx.with_hole(side)
        if padded is None:
            continue
        batch, keep = padded[0], padded[1][0]
        for way in (ctx, _as_boolean(ctx, side)):
            sites = [] if way is None else way.watch(batch)[0].sites
            for extra in (0, 1):  # a summary token before them
                own = [s for s in sites if _shape(s)[-1:] == (keep.shape[0] + extra,)]
                yield "padding", own, torch.cat([torch.zeros(extra, dtype=torch.bool), ~keep])


def _shape(site: Site) -> tuple[int, ...]:
    """T S, or nothing where no softmax was seen."""
    whole = site.weights is not None and site.weights.numel() == site.scores.numel()
    return tuple(site.softmax_in.shape[-2:]) if whole and site.softmax_in is not None else ()


def _as_boolean(ctx: Context, side: str) -> Context | None:
    """The same with a boolean mask, where only a float one was found to work, but a boolean one
    is taken and belongs there by the argument's name."""
    slots = [
        replace(s, encoding=replace(s.encoding, polarity="block"))
        if s.boolean and s.side == side and s.encoding.polarity == "add"
        else s
        for s in ctx.call.slots
    ]
    if slots == ctx.call.slots:
        return None
    return replace(ctx, call=replace(ctx.call, slots=slots))
