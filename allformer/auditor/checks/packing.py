"""Documents packed into one row must not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.report import Finding


@check("packing.leak", kinds=("decoder", "encoder"))
def packing(ctx: Context) -> Iterator[Finding]:
    """Packed = separate, for a model that is told which document a token belongs to."""
    if not ctx.call.documents_name:
        raise NotApplicable("it takes no document ids")
    whole = ctx.call.batch(1, max(6, ctx.call.length - ctx.call.length % 2))
    n = whole.x.shape[1]
    half = n // 2
    documents = (torch.arange(n) >= half).long()[None]
    base = ctx.run(replace(whole, documents=documents))
    other = whole.x.clone()
    other[:, :half] = ctx.call.other(other)[:, :half]
    changed = ctx.run(replace(whole, x=other, documents=documents))
    gap = distance(changed[:, half:], base[:, half:])
    if gap > 1e-6 * scale_of(base):
        yield Finding(
            "packing.leak",
            "",
            f"changing the first of two packed documents moves the second's outputs by {gap:.3g} "
            f"(size {scale_of(base):.3g})",
        )
        return
    alone = ctx.run(
        replace(whole, x=whole.x[:, half:], documents=torch.zeros(1, n - half, dtype=torch.long))
    )
    gap = distance(base[:, half:], alone)
    if gap > 1e-6 * scale_of(base):
        yield Finding(
            "packing.leak",
            "",
            f"the second of two packed documents gives other outputs than alone, by {gap:.3g}: its "
            f"positions do not begin anew",
        )
