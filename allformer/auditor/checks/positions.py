"""Is there any positional information? One token repeated must not look the same everywhere.

Absolute positions show in the outputs. Relative ones (rotary, ALiBi, T5) do not: all values are
equal, so the weights do not matter; they show in the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.positions import varies
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

SAME = 1e-5  # above what norms and angles in fp32 leave in a model of fp64


def score_spread(site: Site) -> float:
    """How much the scores of a row that are not hidden differ, for a token repeated.

    Row by row: what is added to all scores of a row (ALiBi along the queries) the softmax forgets.
    """
    masked = site.masked_in.double()
    open_ = torch.isfinite(masked) & (masked > -1e4)
    if site.weights.shape == masked.shape:
        open_ &= site.weights > 0
    highest = masked.masked_fill(~open_, -torch.inf).amax(-1)
    lowest = masked.masked_fill(~open_, torch.inf).amin(-1)
    some = open_.any(-1)
    if not bool(some.any()):
        return 0.0
    size = torch.maximum(highest.abs(), lowest.abs())
    return float(((highest - lowest) / (1 + size))[some].max())


@check("positions.missing", "positions.batch_axis")
def missing(ctx: Context) -> Iterator[Finding]:
    """A token repeated: its outputs or its scores differ by position."""
    if not ctx.call.x.ids and ctx.call.x.picture is None:
        raise NotApplicable("it takes vectors: positions may be added outside")
    if "no-positions" in ctx.profile:
        raise NotApplicable("profile: no positions, by choice")
    seen, out = ctx.same
    if out.ndim != 3:
        yield from _pooled(ctx)
        return
    absolute = varies(out, 1)
    n = ctx.positions()
    sites = [s for s in seen.sites if s.scores.shape[1:] == (n, n)]
    if ctx.kind == "seq2seq":
        yield from _both_sides(ctx, seen.sites, absolute)
        return
    relative = max((score_spread(s) for s in sites), default=0.0)
    if absolute > SAME or relative > SAME:
        return
    if not sites and not _blind_to_order(ctx):
        return
    yield from _turned_by_row(ctx)
    yield Finding(
        "positions.missing",
        f"one token repeated {n} times gives the same output at every position (relative spread "
        f"{absolute:.1e}) and the same score for every pair ({relative:.1e})",
    )


def _turned_by_row(ctx: Context) -> Iterator[Finding]:
    """Queries and keys turned by the row instead of the position: the scores do not show it."""
    one, rows = ctx.one, 3
    batch = replace(one, x=one.x[:, :1].expand(rows, *one.x.shape[1:]).clone())
    for site in ctx.watch(batch)[0].sites:
        if site.q.shape[0] % rows == 0:
            gap = varies(site.q.reshape(rows, -1, *site.q.shape[1:]), 0)
            if gap > SAME:
                yield Finding(
                    "positions.batch_axis",
                    f"{rows} identical rows of one token have different queries (by {gap:.2g} of "
                    f"their size), the positions of a row the same: they turn along the batch axis",
                    site.where,
                )
            return


def _pooled(ctx: Context) -> Iterator[Finding]:
    if _blind_to_order(ctx):
        yield Finding("positions.missing", "shuffling the tokens does not change the output")


def _blind_to_order(ctx: Context) -> bool:
    """Whether shuffled tokens give shuffled outputs."""
    n = ctx.positions()  # the ends stay: one of them may be what is pooled
    middle = torch.randperm(n - 2, generator=torch.Generator().manual_seed(3)) + 1
    order = torch.cat([torch.tensor([0]), middle, torch.tensor([n - 1])])
    base = ctx.run(ctx.one)
    out = ctx.run(replace(ctx.one, x=ctx.one.x[:, order]))
    return not ctx.moved(out, base[:, order] if base.ndim == 3 else base)


def _both_sides(ctx: Context, sites: list[Site], absolute: float) -> Iterator[Finding]:
    """Encoder and decoder each need positions of their own: look at their self-attentions."""
    source = ctx.one.source
    assert source is not None
    for side, n in (("source", source.shape[1]), ("target", ctx.positions())):
        own = [s for s in sites if s.scores.shape[1:] == (n, n)]
        if not own:
            continue
        site = own[0]
        spread = max(score_spread(s) for s in own)
        inputs = max(varies(site.q, 1), varies(site.k, 1))
        if spread < SAME and inputs < SAME:
            yield Finding(
                "positions.missing",
                f"one token repeated on the {side} side: queries, keys and scores of its first "
                f"self-attention are the same at all {n} positions (spread {spread:.1e})",
                site.where,
            )
