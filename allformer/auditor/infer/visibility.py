"""What a module sees: the future or the past, padding under a mask, an id of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Call, everything
from allformer.auditor.infer.attempt import attempt, watched
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.watch import Site


def sees(plan: Call, twin: Any, rows: int = 2) -> tuple[bool, bool] | None:
    """(the future moves the past, the past moves the future)."""
    batch = plan.batch(rows)
    half = batch.x.shape[1] // 2
    base = attempt(plan, twin, batch)
    if base is None or base.ndim != 3:
        return None
    other = plan.other(batch.x)
    late, early = batch.x.clone(), batch.x.clone()
    late[:, half:], early[:, :half] = other[:, half:], other[:, :half]
    a, b = (attempt(plan, twin, replace(batch, x=x)) for x in (late, early))
    if a is None or b is None:
        return None
    tol = 1e-6 * scale_of(base)
    return distance(a[:, :half], base[:, :half]) > tol, distance(b[:, half:], base[:, half:]) > tol


def order(plan: Call, twin: Any) -> str:
    """ "right" if nothing sees the future; "wrong" if some positions do, but the first none of the
    last while later ones see the past: a mask of its own, off by one; "" if there is no order."""
    found = sees(plan, twin)
    if found is None or not found[0]:
        return "" if found is None else "right"
    batch = plan.batch(1)
    last = batch.x.clone()
    last[:, -1] = plan.other(last)[:, -1]
    base, moved = (attempt(plan, twin, replace(batch, x=x)) for x in (batch.x, last))
    if base is None or moved is None or not found[1]:
        return ""
    return "" if distance(moved[:, 0], base[:, 0]) > 1e-6 * scale_of(base) else "wrong"


def one_sided(look: Tensor) -> bool:
    """Whether earlier keys are looked at, and no later one; T T boolean."""
    return bool(look.tril(-1).any()) and not bool(look.triu(1).any())


def padding_influence(plan: Call, twin: Any, side: str, rows: int = 3) -> float | None:
    """How much hidden content moves the output, over how much seen content does; None: no call."""
    batch = plan.batch(rows)
    content = batch.content(side)
    keep = everything(content)
    keep[:, plan.hole(side, content.shape[1])] = False
    other = plan.other(content)

    def run(same: Tensor) -> Tensor | None:
        """With other content where not `same`."""
        new = torch.where(same[..., None] if content.is_floating_point() else same, content, other)
        return attempt(plan, twin, replace(batch, **{side: new}).hiding(side, keep))

    later = torch.ones_like(keep)
    later[:, 0] = False  # change the first token: it is seen by all
    base, hidden, shown = run(torch.ones_like(keep)), run(keep), run(later)
    if base is None or hidden is None or shown is None:
        return None
    if base.ndim == 3 and side == "x":
        real = keep[0] & later[0]
        base, hidden, shown = base[:, real], hidden[:, real], shown[:, real]
    moved, control = distance(hidden, base), distance(shown, base)
    if not control < float("inf") or control < 1e-9 * scale_of(base):
        return None if moved == float("inf") else 1e6
    return moved / control


def looks_away(plan: Call, twin: Any, candidate: int) -> bool:
    """Whether no query looks at keys with this id."""
    batch = plan.batch(1)
    side = "x" if batch.source is None else "source"
    marked = getattr(batch, side).clone()
    marked[:, 3:5] = candidate
    sites = watched(plan, twin, replace(batch, **{side: marked})).sites
    sites = [s for s in sites if s.weights.shape[-1] == marked.shape[1]]
    return any(_hides(s) for s in sites)  # one attention that looks away is enough: a mask


def blank_queries(plan: Call, twin: Any, candidate: int) -> bool:
    """Whether queries with this id look at all keys alike, though their scores differ, and the
    others do not: a mask of the padding that lies along the queries."""
    batch = plan.batch(1)
    side = "x" if batch.source is None else "source"
    marked = getattr(batch, side).clone()
    marked[:, 3:5] = candidate
    n = marked.shape[1]
    for s in watched(plan, twin, replace(batch, **{side: marked})).sites:
        if s.weights.shape[1:] != (n, n) or s.softmax_in.numel() != s.scores.numel():
            continue
        given = s.masked_in
        rows = torch.zeros(n, dtype=torch.bool)
        rows[3:5] = True
        hidden = given[:, rows]
        blank = bool((hidden == hidden[:1, :1, :1]).all()) and float(s.scores[:, rows].std()) > 1e-6
        if blank and float(given[:, ~rows].std(-1).nan_to_num(1.0).min()) > 1e-6:
            return True
    return False


def _hides(site: Site) -> bool:
    """Whether keys 3 and 4 are masked: unseen, and their scores below all others or one number.

    Large scores leave many weights at 0 too, but not those of a key for every query and head.
    """
    if not float(site.weights[:, 5:, 3:5].abs().max()) < 1e-12:
        return False
    if not float(site.weights[:, 5:, :3].abs().max()) > 1e-12:
        return False
    hidden, shown = site.masked_in[:, 5:, 3:5], site.masked_in[:, 5:, :3]
    shown = shown[torch.isfinite(shown) & (shown > -1e4)]
    low = shown.numel() > 0 and float(hidden.max()) < float(shown.min())
    return low or bool((hidden == hidden.flatten()[0]).all())
