"""Padding must not be seen: not its content, not its amount, on neither side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.infer import padding_influence
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

PADS = 3


def _filler(ctx: Context, content: Tensor) -> Tensor:
    """What padding is made of: the pad id, or other content."""
    shape = (content.shape[0], PADS, *content.shape[2:])
    if content.is_floating_point():
        return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(content.dtype)
    pad = ctx.call.pad if ctx.call.pad is not None else 0
    return torch.full(shape, pad, dtype=content.dtype)


def with_padding(ctx: Context, content: Tensor, left: bool) -> tuple[Tensor, Tensor]:
    """The content with padding on one side, and which of it is real."""
    filler = _filler(ctx, content)
    keep = torch.ones(content.shape[0], content.shape[1] + PADS, dtype=torch.bool)
    keep[:, slice(0, PADS) if left else slice(content.shape[1], None)] = False
    return torch.cat([filler, content] if left else [content, filler], 1), keep


def room(ctx: Context) -> Batch:
    """A batch short enough that padding fits a table of positions."""
    return ctx.call.batch(2, max(4, ctx.call.length - PADS))


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
    sites = [s for s in seen.sites if s.weights is not None and s.weights.shape[1:] == (n, n)]
    columns = [float(s.weights[:, keep[0]][:, :, ~keep[0]].max()) for s in sites]  # type: ignore[index]
    evidence = (
        f"changing the content of padding moves real outputs {score:.2g} times as much as changing "
        f"a real token does"
    )
    if columns:
        evidence += f"; real positions give padding a weight of up to {max(columns):.2g}"
    inverted = _inverted(ctx)
    if inverted:
        yield Finding("mask.inverted", "", f"{evidence}; with the mask inverted it does not")
    elif sites and all(_padding_alone(s, keep[0]) for s in sites):
        yield Finding("mask.inverted", sites[0].where, f"{evidence}, and no weight to real tokens")
    elif sites and query_rows(sites[0], keep[0]):
        yield Finding(
            "padding.query_axis", "", f"{evidence}; the rows of padding are masked instead"
        )
    else:
        yield Finding("padding.ignored", "", evidence)


def _padding_alone(site: Site, keep: Tensor) -> bool:
    """Whether real positions look at padding, and at no real token."""
    assert site.weights is not None
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


def nothing_hidden(ctx: Context) -> list[Finding]:
    """A mask that hides nothing is no mask; else it is read one way here, the other way there."""
    call = replace(ctx.call, positions_name="")  # which would be given with the mask alone
    slots = [s for s in call.slots if s.causal or s.side != "x"]
    used = [s for s in call.slots if s not in slots]
    if len(used) != 1 or used[0].encoding.full or call.kind == "seq2seq":
        return []  # several masks, or one that may say more than what is padding
    batch = call.batch(2)
    try:
        with torch.no_grad():
            given = call(ctx.loud, batch).main  # a mask of all tokens
            bare = replace(call, slots=slots)(ctx.loud, batch).main
    except Exception:  # it cannot be left out
        return []
    if bare.shape != given.shape or not ctx.moved(given, bare):
        return []
    return [
        Finding(
            "mask.inverted",
            "",
            f"padding is hidden with {used[0].name} as {used[0].encoding}, but such a mask with "
            f"nothing to hide moves the outputs by {distance(given, bare):.3g} (size "
            f"{scale_of(bare):.3g}): it is read the other way round elsewhere, as for positions",
        )
    ]


def query_rows(site: Site, keep: Tensor) -> bool:
    """The rows of padding are blank (even, zero or NaN), those of real tokens are not."""
    assert site.weights is not None
    spread = site.weights.nan_to_num(0.0).std(-1)  # N T
    return float(spread[:, ~keep].max()) < 1e-9 < 1e-6 < float(spread[:, keep].min())


def _amount(ctx: Context) -> Iterator[Finding]:
    """Padding on the right of anything but a fixed-length model changes no real output."""
    *_, real, base = _on_the_right(ctx)
    if ctx.moved(real, base) and not counted_from_the_end(ctx):
        yield Finding(
            "padding.ignored",
            "",
            f"{PADS} masked tokens on the right move real outputs by {distance(real, base):.3g} "
            f"(outputs are of size {scale_of(base):.3g})",
        )


def _on_the_right(ctx: Context) -> tuple[Batch, Batch, Tensor, Tensor]:
    """A batch, the same padded, and the outputs of its real positions: padded, and as it is."""
    batch = room(ctx)
    whole = ctx.hidden(batch, everything(batch.x))
    x, keep = with_padding(ctx, batch.x, left=False)
    padded = ctx.hidden(replace(batch, x=x), keep)
    base, out = ctx.run(whole), ctx.run(padded)
    real = out[:, : batch.x.shape[1]] if out.ndim == 3 else out
    return whole, padded, real, base


def counted_from_the_end(ctx: Context) -> str:
    """Padding on the right that nobody looks at moves the scores of the first attention: how much.

    The products of queries and keys: positions that turn both alike leave them as they are.
    """
    if ctx.kind != "decoder" or not ctx.call.x.ids:
        return ""
    whole, longer, real, base = _on_the_right(ctx)
    n, m = whole.x.shape[1], longer.x.shape[1]
    if not ctx.moved(real, base):
        return ""
    alone, padded = (ctx.watch(batch)[0].sites[:1] for batch in (whole, longer))
    if not alone or not padded or (alone[0].q.shape[1], padded[0].q.shape[1]) != (n, m):
        return ""
    if not ctx.moved(padded[0].scores[:, :n, :n], alone[0].scores):
        return ""
    return (
        f"{PADS} masked tokens on the right move real outputs by {distance(real, base):.3g} (size "
        f"{scale_of(base):.3g}); their content is not seen, and the scores of the first attention "
        f"move already: positions follow the padded length, not the real tokens"
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
            "",
            f"with {PADS} tokens of padding (id {ctx.call.pad}) on the right, positions look at "
            f"them alone and at no real token; real outputs move by {distance(real, base):.3g}",
        )
    elif ctx.moved(real, base):
        yield Finding(
            "padding.ignored",
            "",
            f"{PADS} tokens of padding (id {ctx.call.pad}) on the right move real outputs by "
            f"{distance(real, base):.3g} (outputs are of size {scale_of(base):.3g})",
        )


def _only_padding(ctx: Context, x: Tensor) -> bool:
    """Whether no attention looks at real keys, but at padding, the last of `x`."""
    n = x.shape[1]
    sites = ctx.watch(Batch(x))[0].sites
    own = [s.weights for s in sites if s.weights is not None and s.weights.shape[-1] in (n, n + 1)]
    shown = [float(w[..., -n:-PADS].abs().max()) for w in own]
    return bool(own) and max(shown) < 1e-9 < min(float(w[..., -PADS:].max()) for w in own)
