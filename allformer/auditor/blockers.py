"""Findings that stand alone: with one of them, no other check can tell anything."""

from __future__ import annotations

from dataclasses import replace

import torch

from allformer.auditor.context import Context
from allformer.auditor.evidence.looks import all_hidden
from allformer.auditor.probe import distance, part_outputs, scale_of
from allformer.auditor.report import Finding
from allformer.errors import AuditError


def blocker(ctx: Context) -> Finding | None:
    """The one finding, if there is such a one."""
    return _rows(ctx) if ctx.call.square else _all_nan(ctx)


def _all_nan(ctx: Context) -> Finding | None:
    """No number comes out, with the user's own weights too: nothing else can be told."""
    if ctx.kind == "norm":
        return None
    batch = ctx.call.batch(2)
    if bool(torch.isfinite(ctx.run(batch)).any()):
        return None
    if ctx.call.slots:  # a mask that is given may be what hides everything
        return _hidden_somewhere(ctx)
    out = ctx.run(batch, ctx.quiet)
    if bool(torch.isfinite(out).any()):
        return None
    outs = part_outputs(ctx.quiet, lambda: ctx.run(batch, ctx.quiet))
    first = next((name for name, o in outs if not bool(torch.isfinite(o).all())), "")
    if ctx.call.x.keeps:
        none = replace(batch, keep=torch.zeros(batch.x.shape[:2], dtype=torch.bool))
        if bool(torch.isfinite(ctx.run(none, ctx.quiet)).all()):
            return Finding(
                "mask.inverted",
                f"a mask that keeps every token makes all {out.numel()} outputs NaN, one that "
                f"hides every token none: it is read the other way round",
                first,
            )
    return Finding(
        "training.nan", f"all {out.numel()} outputs are NaN or infinite before any training", first
    )


def _hidden_somewhere(ctx: Context) -> Finding | None:
    """The mask that is given hides all keys of some attentions, and not those of others."""
    hiding = [all_hidden(site) for site in ctx.seen.sites]
    if all(hiding) or not any(hiding):
        return None
    site = ctx.seen.sites[hiding.index(True)]
    return Finding(
        "mask.inverted",
        f"with a mask that hides nothing all {site.k.shape[1]} keys are hidden from every query in "
        f"{sum(hiding)} of {len(hiding)} attentions, and all outputs are NaN: it is read the other "
        f"way round there",
        site.where,
    )


def _rows(ctx: Context) -> Finding:
    """It runs only with as many rows as positions; if they see each other, that is why."""
    n = ctx.call.length
    batch = ctx.call.batch(n)
    x = batch.x.clone()
    x[1] = ctx.call.other(x)[1]
    base = ctx.run(batch)
    moved = ctx.run(replace(batch, x=x))
    gap = max(distance(moved[i], base[i]) for i in range(n) if i != 1)
    reasons = "; ".join(ctx.call.tried[:2])
    if not gap > 1e-6 * scale_of(base):
        raise AuditError(
            f"the module could be called only with as many rows as positions ({n}), else: "
            f"{reasons}. Say how: audit(module, call=lambda module, ids: module(...))"
        )
    return Finding(
        "batch.mixing",
        f"it runs only with as many rows as positions: changing row 1 of {n} moves others by "
        f"{gap:.3g} (outputs are of size {scale_of(base):.3g}), so it attends along the rows; "
        f"with 3 rows of {n}: {reasons}",
    )
