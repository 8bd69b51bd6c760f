"""Run at two lengths: the scale of the scores does not follow the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


@check("attention.scale", kinds=PARTS)
def by_length(ctx: Context) -> Iterator[Finding]:
    """Scores divided by √T or by T shrink as the text grows; √d_k stays. (log n is a design.)"""
    sites = ctx.sites()
    n = ctx.positions()
    try:
        short = ctx.watch(ctx.call.batch(1, n // 2))[0].sites
    except Exception as error:
        raise NotApplicable(f"it runs at one length only: {error}") from error
    if len(short) != len(sites):
        raise NotApplicable("another length takes other steps")
    for site, other in zip(sites, short, strict=True):
        found = _power(site, other)
        if found:
            yield Finding(
                "attention.scale",
                site.where,
                f"scaled by {found}, the number of keys: Q·Kᵀ is multiplied by {site.scale:.4g} "
                f"for {site.k.shape[1]} keys and by {other.scale:.4g} for {other.k.shape[1]}; "
                f"1/√d_k = {site.q.shape[-1] ** -0.5:.4g} is right for any",
            )
            return


def _power(site: Site, other: Site) -> str:
    if site.learned_scale or site.k.shape[1] == other.k.shape[1] or not other.scale:
        return ""
    change, keys = site.scale / other.scale, site.k.shape[1] / other.k.shape[1]
    for power, name in ((-0.5, "1/√T"), (-1.0, "1/T"), (0.5, "√T"), (1.0, "T")):
        if abs(change / keys**power - 1) < 0.01:
            return name
    return ""
