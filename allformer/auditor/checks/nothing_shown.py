"""An attention whose mask hides every key from every query, though nothing is padding."""

from __future__ import annotations

from collections.abc import Iterator

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.looks import all_hidden
from allformer.auditor.report import Finding


@check("mask.inverted", kinds=PARTS)
def nothing_shown(ctx: Context) -> Iterator[Finding]:
    """Without padding some key is shown to some query."""
    if any(not ctx.call.side(s.side).keeps and not s.causal for s in ctx.call.slots):
        raise NotApplicable("a mask is given of which it is not known how it is read")
    for site in ctx.sites():
        if all_hidden(site):
            yield Finding(
                "mask.inverted",
                f"without padding all {site.k.shape[1]} keys are hidden from every query: it looks "
                f"at them evenly, or at none",
                site.where,
            )
            return
