# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Does a position see the future? And if so: by one, the wrong way round, or at all?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.checks.constants import finite_value
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.probe import distance, part_outputs, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


def allowed(site: Site) -> Tensor:
    """T S: which keys any head looks at; a row that may see nothing is even, and looks at none."""
    assert site.weights is not None
    weights = site.weights.abs().nan_to_num(0.0)
    blind = (weights.amax(-1) - weights.amin(-1) < 1e-12).all(0)
    return (weights.amax(0) > 1e-12) & ~(blind & (weights.shape[-1] > 1))[:, None]


def square(ctx: Context) -> list[Site]:
    """The self-attentions."""
    n = ctx.positions()
    out = []
    for s in ctx.seen.sites:
        if s.weights is not None and s.weights.shape[1:] == (n, n) and s.q.shape[1] == n:
            out.append(s)
    return out


@check(
    "mask.future_leak", "mask.off_by_one", "mask.inverted", "mask.finite",
    kinds=("decoder", "seq2seq"),
)  # fmt: skip
def leak(ctx: Context) -> Iterator[Finding]:
    """Change token j: outputs before j must not move, outputs after it must."""
    seen = ctx.pattern  # T T: output t moves with token j
    future, past = seen.triu(1), seen.tril(-1)
    n = seen.shape[0]
    sites = square(ctx)
    looks = allowed(sites[0]) if sites else None
    tril = torch.ones(n, n, dtype=torch.bool).tril
    if bool(future.any()):
        t, j = (int(i) for i in future.nonzero()[0])
        size = _size(ctx, j, t)
        evidence = (
            f"changing token {j} moves the output at position {t} by {size:.3g}; "
            f"{int(future.sum())} of {n * (n - 1) // 2} later tokens are seen"
        )
        where = _where(ctx, j, t)
        if looks is not None and not bool(looks.tril(-1).any()) and bool(looks.triu(1).any()):
            yield Finding("mask.inverted", sites[0].where, f"{evidence}, and no earlier one is")
        elif looks is not None and not bool(looks.any()):
            yield Finding(
                "mask.inverted",
                sites[0].where,
                f"without padding every position looks at all {n} evenly: all of them are hidden, "
                f"so: {evidence}",
            )
        elif looks is not None and torch.equal(looks[1:], tril(-1)[1:]):
            yield Finding(
                "mask.off_by_one",
                sites[0].where,
                f"no position looks at itself, only at earlier ones; the first sees nothing, so: "
                f"{evidence}",
            )
        elif looks is not None and _one_ahead(looks):
            yield Finding(
                "mask.off_by_one", sites[0].where, f"{evidence}: exactly one ahead a layer"
            )
        elif looks is not None and looks.triu(1).any() and (value := finite_value(sites[0])):
            yield Finding(
                "mask.finite",
                sites[0].where,
                f"{evidence}: hidden scores are {value:.4g}, not −inf",
            )
        else:
            yield Finding("mask.future_leak", where, evidence)
        return
    if not bool(past.any()):
        yield Finding(
            "mask.inverted",
            sites[0].where if sites else "",
            "no output depends on any earlier token: every position sees itself alone",
        )
        return
    for site in sites:
        look = allowed(site)
        inner = look[1:].diagonal(1)
        if not bool(inner.any()) and bool(look.tril(-1).any()) and "shared-qk" not in ctx.profile:
            yield Finding(
                "mask.off_by_one",
                site.where,
                f"no position looks at itself (the diagonal of the weights is 0 in all {n} rows), "
                f"only at earlier ones",
            )
            return


@check("mask.off_by_one", "mask.inverted", kinds=("attention", "block"))
def shape_of_mask(ctx: Context) -> Iterator[Finding]:
    """An attention by itself is either full or causal; nearly causal is a mistake."""
    sites = square(ctx)
    if not sites:
        raise NotApplicable("no self-attention was seen in its operators")
    n = ctx.positions()
    full = torch.ones(n, n, dtype=torch.bool)
    for site in sites:
        look = allowed(site)
        for wrong, words in (
            (full.tril(1), "and one later"),
            (full.tril(-1), "earlier alone, not itself"),
        ):
            if torch.equal(look, wrong):
                yield Finding(
                    "mask.off_by_one",
                    site.where,
                    f"position t looks at the earlier positions {words}: {int(look.sum())} pairs, "
                    f"{n * (n + 1) // 2} are causal",
                )
                return
        if torch.equal(look, full.triu()) or torch.equal(look, full.triu(1)):
            yield Finding(
                "mask.inverted",
                site.where,
                f"position t looks at later positions only: {int(look.triu(1).sum())} later pairs, "
                f"{int(look.tril(-1).sum())} earlier ones",
            )
            return


def _one_ahead(looks: Tensor) -> bool:
    """Nothing further than one ahead is looked at, and that by most (large scores leave some 0)."""
    ahead = looks.diagonal(1)
    return not bool(looks.triu(2).any()) and int(ahead.sum()) > len(ahead) // 2


def _size(ctx: Context, j: int, t: int) -> float:
    x = ctx.one.x.clone()
    x[:, j] = ctx.call.other(x)[:, j]
    a, b = ctx.run(replace(ctx.one, x=x)), ctx.run(ctx.one)
    return distance(a[:, t], b[:, t])


def _where(ctx: Context, j: int, t: int) -> str:
    """The first part whose output at t moves with token j though its input there did not."""
    x = ctx.one.x.clone()
    x[:, j] = ctx.call.other(x)[:, j]
    changed = replace(ctx.one, x=x)
    both = [
        part_outputs(ctx.loud, lambda batch=batch: ctx.run(batch))  # type: ignore[misc]
        for batch in (ctx.one, changed)
    ]
    runs = [[(name, out) for name, out in run if out.ndim == 3] for run in both]
    n = x.shape[1]
    for (name, a), (_, b) in zip(*runs, strict=False):
        axis = 0 if ctx.call.time_first else 1
        if a.shape == b.shape and a.shape[axis] == n:
            one, two = a.select(axis, t), b.select(axis, t)
            if distance(one, two) > 1e-6 * scale_of(a):
                return name
    return ""
