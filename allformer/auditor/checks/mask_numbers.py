"""Masks that are a small number: added to the scores, or put in their place.

    scores + keep.float()                     # 0 and 1 hide nothing
    scores.masked_fill(blocked, -10.0)        # hides until scores grow
    scores * keep                             # 0 is a score like any other

Seen in the operators: the softmax's input less Q·Kᵀ times its scale is 0 but for one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.mask_numbers import SMALL, Constant, _apart, _causal, constant
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


@check("mask.ambiguous", "mask.finite", kinds=PARTS)
def constants(ctx: Context) -> Iterator[Finding]:
    """Where later tokens or padding are, no small number stands in for −inf."""
    known = False
    for what, sites, hidden in _runs(ctx):
        for site in sites:
            found, among = constant(site), torch.ones(_shape(site), dtype=torch.bool)
            if found is None and what == "padding" and among.shape[0] == among.shape[1]:
                among = among.tril()  # later keys may be hidden by another number
                found = constant(site, among)
            if found is None:
                continue
            known = True
            blocked = (hidden & among).expand_as(found.where)
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
    weights = _apart(site, site.weights)
    return float(weights[hidden.expand_as(weights)].max())


def _ambiguous(site: Site, what: str, found: Constant, hidden: Tensor) -> Finding:
    return Finding(
        "mask.ambiguous",
        f"a mask of 0 and 1 is added to the scores ({int(found.where[0].sum())} of "
        f"{found.where[0].numel()} pairs get + 1): {what} still get a weight of up to "
        f"{_weight(site, hidden):.2g}",
        site.where,
    )


def _finite(site: Site, what: str, found: Constant, hidden: Tensor) -> Finding:
    how = f"lowered by {-found.value:.4g}" if found.added else f"{found.value:.4g}, not −inf"
    return Finding(
        "mask.finite",
        f"hidden scores are {how}: {what} still get a weight of up to {_weight(site, hidden):.2g}",
        site.where,
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
    whole = site.weights.numel() == site.scores.numel()
    return tuple(site.softmax_in.shape[-2:]) if whole else ()


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
