"""Padding must not be seen: not its content, not its amount, on neither side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.padding import (
    PADS,
    _on_the_right,
    counted_from_the_end,
    nothing_hidden,
    query_rows,
    room,
    with_padding,
)
from allformer.auditor.infer import padding_influence
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


@check("padding.ignored", "padding.query_axis", kinds=PARTS, also=("mask.inverted",))
def content(ctx: Context) -> Iterator[Finding]:
    """Content under the mask must not matter; neither must padding on the right of an encoder."""
    if ctx.call.x.keeps:
        yield from _by_mask(ctx)
        return
    if ctx.kind == "encoder" and ctx.call.pad is not None and ctx.call.x.ids:
        yield from _by_id(ctx)
        return
    if ctx.call.pad is None:
        raise NotApplicable("it takes no padding mask and names no padding id (give pad=)")
    raise NotApplicable("it takes no padding mask; a causal model needs none for right padding")


def _by_mask(ctx: Context) -> Iterator[Finding]:
    score = padding_influence(ctx.call, ctx.loud, "x")
    if score is None:
        raise NotApplicable("a mask with padding inside could not be given")
    if score < 1e-6:
        yield from nothing_hidden(ctx) or _amount(ctx)
        return
    padded = ctx.with_hole("x")
    assert padded is not None, "it takes a mask"
    batch, keep = padded
    n = batch.x.shape[1]
    seen, _ = ctx.watch(batch)
    sites = [s for s in seen.sites if s.weights.shape[1:] == (n, n)]
    columns = [float(s.weights[:, keep[0]][:, :, ~keep[0]].max()) for s in sites]
    evidence = (
        f"changing the content of padding moves real outputs {score:.2g} times as much as changing "
        f"a real token does"
    )
    if columns:
        evidence += f"; real positions give padding a weight of up to {max(columns):.2g}"
    inverted = _inverted(ctx)
    if inverted:
        yield Finding("mask.inverted", f"{evidence}; with the mask inverted it does not")
    elif sites and all(_padding_alone(s, keep[0]) for s in sites):
        yield Finding("mask.inverted", f"{evidence}, and no weight to real tokens", sites[0].where)
    elif sites and query_rows(sites[0], keep[0]):
        yield Finding("padding.query_axis", f"{evidence}; the rows of padding are masked instead")
    else:
        yield Finding("padding.ignored", evidence)


def _padding_alone(site: Site, keep: Tensor) -> bool:
    """Whether real positions look at padding, and at no real token."""
    real = site.weights[:, keep].abs()
    return float(real[:, :, keep].max()) < 1e-9 < float(real[:, :, ~keep].max())


def _inverted(ctx: Context) -> bool:
    """Whether the same argument works with the other polarity."""
    flip = {"keep": "block", "block": "keep", "keep_int": "block"}
    slots = []
    for slot in ctx.call.slots:
        if slot.side == "x" and not slot.causal and slot.encoding.polarity in flip:
            other = replace(slot.encoding, polarity=flip[slot.encoding.polarity])
            slots.append(replace(slot, encoding=other))
        else:
            slots.append(slot)
    if slots == ctx.call.slots:
        return False
    score = padding_influence(replace(ctx.call, slots=slots), ctx.loud, "x")
    return score is not None and score < 1e-6


def _amount(ctx: Context) -> Iterator[Finding]:
    """Padding on the right of anything but a fixed-length model changes no real output."""
    *_, real, base = _on_the_right(ctx)
    if ctx.moved(real, base) and not counted_from_the_end(ctx):
        yield Finding(
            "padding.ignored",
            f"{PADS} masked tokens on the right move real outputs by {distance(real, base):.3g} "
            f"(outputs are of size {scale_of(base):.3g})",
        )


def _by_id(ctx: Context) -> Iterator[Finding]:
    batch = room(ctx)
    base = ctx.run(batch)
    x, _ = with_padding(ctx, batch.x, left=False)
    out = ctx.run(replace(batch, x=x))
    real = out[:, : batch.x.shape[1]] if out.ndim == 3 else out
    if ctx.moved(real, base) and _only_padding(ctx, x[:1]):
        yield Finding(
            "mask.inverted",
            f"with {PADS} tokens of padding (id {ctx.call.pad}) on the right, positions look at "
            f"them alone and at no real token; real outputs move by {distance(real, base):.3g}",
        )
    elif ctx.moved(real, base):
        rows = _rows_blank(ctx, x[:1])
        yield Finding(
            "padding.query_axis" if rows else "padding.ignored",
            f"{PADS} tokens of padding (id {ctx.call.pad}) on the right move real outputs by "
            f"{distance(real, base):.3g} (outputs are of size {scale_of(base):.3g})"
            + ("; the rows of padding are masked instead" if rows else ""),
        )


def _rows_blank(ctx: Context, x: Tensor) -> bool:
    """Whether the queries of padding, the last of `x`, are masked."""
    n, keep = x.shape[1], everything(x)[0]
    keep[-PADS:] = False
    own = [s for s in ctx.watch(Batch(x))[0].sites if s.weights.shape[1:] == (n, n)]
    return bool(own) and query_rows(own[0], keep)


def _only_padding(ctx: Context, x: Tensor) -> bool:
    """Whether no attention looks at real keys, but at padding, the last of `x`."""
    n = x.shape[1]
    sites = ctx.watch(Batch(x))[0].sites
    own = [s.weights for s in sites if s.weights.shape[-1] in (n, n + 1)]
    shown = [float(w[..., -n:-PADS].abs().max()) for w in own]
    return bool(own) and max(shown) < 1e-9 < min(float(w[..., -PADS:].max()) for w in own)
