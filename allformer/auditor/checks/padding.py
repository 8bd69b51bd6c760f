"""Padding must not be seen: not its content, not its amount, on neither side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.calls import Batch
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


def _room(ctx: Context, side: str = "x") -> Batch:
    """A batch short enough that padding fits a table of positions."""
    return ctx.call.batch(2, max(4, ctx.call.length - PADS))


@check("padding.ignored", "padding.query_axis", "mask.inverted", kinds=PARTS)
def content(ctx: Context) -> Iterator[Finding]:
    """Content under the mask must not matter; neither must padding on the right of an encoder."""
    if ctx.call.keeps:
        yield from _by_mask(ctx)
        return
    if ctx.kind == "encoder" and ctx.call.pad is not None and ctx.call.ids:
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
        yield from _amount(ctx)
        return
    batch = ctx.call.batch(1)
    n = batch.x.shape[1]
    keep = torch.ones(1, n, dtype=torch.bool)
    keep[:, ctx.call.hole("x", n)] = False
    seen, _ = ctx.watch(replace(batch, keep=keep))
    sites = [s for s in seen.sites if s.weights is not None and s.weights.shape[1:] == (n, n)]
    columns = [float(s.weights[:, keep[0]][:, :, ~keep[0]].max()) for s in sites]  # type: ignore[index]
    looks = max(columns, default=float("nan"))
    evidence = (
        f"changing the content of padding moves real outputs {score:.2g} times as much as changing "
        f"a real token does; real positions give padding a weight of up to {looks:.2g}"
    )
    inverted = _inverted(ctx)
    if inverted:
        yield Finding("mask.inverted", "", f"{evidence}; with the mask inverted it does not")
    elif sites and query_rows(sites[0], keep[0]):
        yield Finding(
            "padding.query_axis", "", f"{evidence}; the rows of padding are masked instead"
        )
    else:
        yield Finding("padding.ignored", "", evidence)


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


def query_rows(site: Site, keep: Tensor) -> bool:
    """The rows of padding are blank (even, zero or NaN), those of real tokens are not."""
    assert site.weights is not None
    spread = site.weights.nan_to_num(0.0).std(-1)  # N T
    return float(spread[:, ~keep].max()) < 1e-9 < 1e-6 < float(spread[:, keep].min())


def _amount(ctx: Context) -> Iterator[Finding]:
    """Padding on the right of anything but a fixed-length model changes no real output."""
    batch = _room(ctx)
    base = ctx.run(replace(batch, keep=torch.ones(batch.x.shape[:2], dtype=torch.bool)))
    x, keep = with_padding(ctx, batch.x, left=False)
    out = ctx.run(replace(batch, x=x, keep=keep))
    real = out[:, : batch.x.shape[1]] if out.ndim == 3 else out
    if ctx.moved(real, base):
        yield Finding(
            "padding.ignored",
            "",
            f"{PADS} masked tokens on the right move real outputs by {distance(real, base):.3g} "
            f"(outputs are of size {scale_of(base):.3g})",
        )


def _by_id(ctx: Context) -> Iterator[Finding]:
    batch = _room(ctx)
    base = ctx.run(batch)
    x, _ = with_padding(ctx, batch.x, left=False)
    out = ctx.run(replace(batch, x=x))
    real = out[:, : batch.x.shape[1]] if out.ndim == 3 else out
    if ctx.moved(real, base):
        yield Finding(
            "padding.ignored",
            "",
            f"{PADS} tokens of padding (id {ctx.call.pad}) on the right move real outputs by "
            f"{distance(real, base):.3g} (outputs are of size {scale_of(base):.3g})",
        )


@check("positions.left_padding", kinds=("decoder", "seq2seq"))
def left(ctx: Context) -> Iterator[Finding]:
    """A prompt padded on the left gives the logits that it gives alone."""
    if not ctx.hides or not ctx.call.ids:
        raise NotApplicable("it takes no padding mask")
    if "right-padding" in ctx.profile:
        raise NotApplicable("profile: padding is always on the right")
    if ctx.call.at_end("x"):
        raise NotApplicable("it is told lengths: padding can only be on the right")
    if ctx.call.keeps:
        score = padding_influence(ctx.call, ctx.loud, "x")
        if score is None or score > 1e-6:
            raise NotApplicable("padding is seen at all: mend that first")
    batch = _room(ctx)
    base = ctx.run(ctx.hidden(batch, torch.ones(batch.x.shape[:2], dtype=torch.bool)))
    if base.ndim != 3:
        raise NotApplicable("the output has no position axis")
    x, keep = with_padding(ctx, batch.x, left=True)
    real = ctx.run(ctx.hidden(replace(batch, x=x), keep))[:, PADS:]
    if not bool(torch.isfinite(real).all()):
        raise NotApplicable("left padding gives NaN: see mask.blind_rows")
    if ctx.moved(real, base):
        if ctx.kind == "seq2seq":  # as in transformers' own Bart and Marian: nothing tells a bug
            raise NotApplicable(
                f"targets are padded on the right: on the left, positions count the padding and "
                f"logits move by {distance(real, base):.3g}"
            )
        yield Finding(
            "positions.left_padding",
            "",
            f"{PADS} masked tokens on the left move the logits of the same prompt by "
            f"{distance(real, base):.3g} (size {scale_of(base):.3g}), though their content is not seen",  # noqa: E501
        )
