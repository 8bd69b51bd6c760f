# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Does a position see the future? And if so: by one, the wrong way round, or at all?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.looks import by_choice, causal_encoder, looks
from allformer.auditor.evidence.mask_numbers import finite_value
from allformer.auditor.infer.visibility import one_sided
from allformer.auditor.probe import distance, part_outputs, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


@check(
    "mask.future_leak", "mask.off_by_one", "mask.inverted", "mask.finite",
    kinds=("decoder", "seq2seq"),
)  # fmt: skip
def leak(ctx: Context) -> Iterator[Finding]:
    """Change token j: outputs before j must not move, outputs after it must."""
    seen = ctx.pattern  # T T: output t moves with token j
    future, past = seen.triu(1), seen.tril(-1)
    n = seen.shape[0]
    views = looks(ctx)
    where, look = (views[0][0].where, views[0][1]) if views else ("", None)
    tril = torch.ones(n, n, dtype=torch.bool).tril
    if bool(future.any()):
        t, j = (int(i) for i in future.nonzero()[0])
        size = _size(ctx, j, t)
        evidence = (
            f"changing token {j} moves the output at position {t} by {size:.3g}; "
            f"{int(future.sum())} of {n * (n - 1) // 2} later tokens are seen"
        )
        if look is not None and _later_alone(look):
            yield Finding("mask.inverted", f"{evidence}, and no earlier one is", where)
        elif look is not None and not bool(look.any()):
            yield Finding(
                "mask.inverted",
                f"without padding every position looks at all {n} evenly: all of them are hidden, "
                f"so: {evidence}",
                where,
            )
        elif look is not None and torch.equal(look[1:], tril(-1)[1:]):
            yield Finding(
                "mask.off_by_one",
                f"no position looks at itself, only at earlier ones; the first sees nothing, so: "
                f"{evidence}",
                where,
            )
        elif look is not None and _one_ahead(look):
            yield Finding("mask.off_by_one", f"{evidence}: exactly one ahead a layer", where)
        elif words := _far_only(views):
            yield Finding("mask.inverted", f"{words}; the first see nothing, so: {evidence}", where)
        elif views and (value := finite_value(views[0][0])) is not None:
            yield Finding(
                "mask.finite", f"{evidence}: hidden scores are {value:.4g}, not −inf", where
            )
        else:
            yield Finding("mask.future_leak", evidence, _where(ctx, j, t))
        return
    if not bool(past.any()):
        if look is not None and bool(look.tril(-1).any()):
            return  # it looks at what is earlier, and what it reads there is lost
        yield Finding(
            "mask.inverted",
            "no output depends on any earlier token: every position sees itself alone",
            where,
        )
        return
    if words := _far_only(views):
        yield Finding("mask.inverted", words, where)
        return
    for site, look in views:
        inner = look[1:].diagonal(1)
        if not bool(inner.any()) and bool(look.tril(-1).any()) and "shared-qk" not in ctx.profile:
            yield Finding(
                "mask.off_by_one",
                f"no position looks at itself (the diagonal of the weights is 0 in all {n} rows), "
                f"only at earlier ones",
                site.where,
            )
            return


def _later_alone(look: Tensor) -> bool:
    """Whether positions look at later ones and at no earlier one; the last has nothing later: all
    that it may look at has one and the same huge score, or none is shown."""
    return bool(look.triu(1).any()) and not bool(look[:-1].tril(-1).any())


def _far_only(views: list[tuple[Site, Tensor]]) -> str:
    """A window the wrong way round: all that is further than some distance, and nothing nearer.

    A dilated or strided pattern leaves gaps among what is far too, and one layer or head that sees
    near positions is enough.
    """
    if not views:
        return ""
    seen = torch.stack([look for _, look in views]).any(0)
    n = seen.shape[0]
    bands = [seen.diagonal(-d) for d in range(n)]
    first = next((d for d in range(1, n) if bool(bands[d].any())), n)
    if 1 < first < n - 1 and all(bool(band.all()) for band in bands[first:]):
        near = "itself and " if bool(bands[0].any()) else ""
        return (
            f"position t looks at {near}what is {first} or more before it, all of it, and at "
            f"nothing nearer: the window hides what it should show"
        )
    return ""


@check("mask.off_by_one", "mask.inverted", kinds=("attention", "block"))
def shape_of_mask(ctx: Context) -> Iterator[Finding]:
    """An attention by itself is either full or causal; nearly causal is a mistake."""
    views = looks(ctx)
    if not views:
        raise NotApplicable("no self-attention was seen in its operators")
    if words := _far_only(views):
        yield Finding("mask.inverted", words, views[0][0].where)
        return
    for site, look in views:
        if found := _nearly_causal(site, look) or _later_only(site, look):
            yield found
            return


def _nearly_causal(site: Site, look: Tensor) -> Finding | None:
    full = torch.ones_like(look)
    for off, words in ((1, "and one later"), (-1, "alone, not itself")):
        if torch.equal(look, full.tril(off)):
            return Finding(
                "mask.off_by_one",
                f"position t looks at the earlier positions {words}: {int(look.sum())} pairs, "
                f"{int(full.tril().sum())} are causal",
                site.where,
            )
    return None


def _later_only(site: Site, look: Tensor) -> Finding | None:
    full = torch.ones_like(look)
    if not torch.equal(look, full.triu()) and not torch.equal(look, full.triu(1)):
        return None
    return Finding(
        "mask.inverted",
        f"position t looks at later positions only: {int(look.triu(1).sum())} later pairs, 0 "
        f"earlier ones",
        site.where,
    )


@check("mask.causal", "mask.off_by_one", "mask.inverted", kinds=("encoder",))
def both_sides(ctx: Context) -> Iterator[Finding]:
    """An encoder reads to both sides; some hide near positions instead of far ones."""
    views = looks(ctx)
    if words := _far_only(views):
        yield Finding("mask.inverted", words, views[0][0].where)
    elif views and all(one_sided(look.mT) for _, look in views):
        yield from filter(None, [_later_only(*views[0])])
    elif views:
        causal = list(causal_encoder(ctx, views, ""))
        nearly = (_nearly_causal(site, look) for site, look in views)
        yield from causal or list(filter(None, nearly))[:1]
    elif bool(ctx.pattern.tril(-1).any()) and not bool(ctx.pattern.triu(1).any()):
        by_choice(ctx)
        yield Finding("mask.causal", "outputs depend on earlier tokens, and on no later one")


def _one_ahead(look: Tensor) -> bool:
    """Nothing further than one ahead is looked at, and that by most."""
    ahead = look.diagonal(1)
    return not bool(look.triu(2).any()) and int(ahead.sum()) > len(ahead) // 2


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
