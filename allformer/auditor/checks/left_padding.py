"""Padding on the left: positions begin at the first real token, and padding takes no weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.padding import (
    PADS,
    counted_from_the_end,
    nothing_hidden,
    room,
    with_padding,
)
from allformer.auditor.infer import padding_influence
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.report import Finding


def _looks(ctx: Context, batch: Batch, keep: Tensor) -> float:
    """The largest weight that a real position gives to padding."""
    real = keep[0]  # the same in every row
    weights = [s.weights for s in ctx.watch(batch)[0].sites]
    own = [w for w in weights if w.shape[1:] == (real.numel(), real.numel())]
    return max((float(w[:, real][:, :, ~real].max()) for w in own), default=0.0)


def _turned(ctx: Context, whole: Batch, padded: Batch) -> float:
    """How far padding on the left turns the queries and keys of the first attention.

    Nothing else may move them: their lengths stay, and so do the scores of real positions.
    """
    n = whole.x.shape[1]
    alone, after = (ctx.watch(batch)[0].sites[:1] for batch in (whole, padded))
    if not alone or not after or after[0].q.shape[1] != n + PADS or alone[0].q.shape[1] != n:
        return 0.0
    pairs = [(getattr(after[0], side)[:, PADS:], getattr(alone[0], side)) for side in ("q", "k")]
    if any(ctx.moved(a.norm(dim=-1), b.norm(dim=-1)) or not ctx.moved(a, b) for a, b in pairs):
        return 0.0
    return max(distance(a, b) / scale_of(b) for a, b in pairs)


@check("positions.left_padding", kinds=("decoder", "seq2seq"))
def left(ctx: Context) -> Iterator[Finding]:
    """A prompt padded on the left gives the logits that it gives alone."""
    if not ctx.hides or not ctx.call.x.ids:
        raise NotApplicable("it takes no padding mask")
    if ctx.call.x.keeps:
        score = padding_influence(ctx.call, ctx.loud, "x")
        if score is None or score > 1e-6:
            raise NotApplicable("padding is seen at all: mend that first")
        if nothing_hidden(ctx):
            raise NotApplicable("the mask is read in two ways: mend that first")
    if words := counted_from_the_end(ctx):
        yield Finding("positions.left_padding", words)
        return
    if ctx.call.at_end("x"):
        raise NotApplicable("it is told lengths: padding can only be on the right")
    if "right-padding" in ctx.profile:
        raise NotApplicable("profile: padding is always on the right")
    batch = room(ctx)
    whole = ctx.hidden(batch, everything(batch.x))
    base = ctx.run(whole)
    if base.ndim != 3:
        raise NotApplicable("the output has no position axis")
    x, keep = with_padding(ctx, batch.x, left=True)
    padded = ctx.hidden(replace(batch, x=x), keep)
    real = ctx.run(padded)[:, PADS:]
    if not bool(torch.isfinite(real).all()):
        raise NotApplicable("left padding gives NaN: see mask.blind_rows")
    if ctx.moved(real, base):
        looks = _looks(ctx, padded, keep)
        if looks > 1e-6:  # nothing of it is in the values, but it takes weight
            yield Finding(
                "padding.ignored",
                f"real positions give padding a weight of up to {looks:.2g}: {PADS} masked tokens "
                f"on the left move the logits of the same prompt by {distance(real, base):.3g} "
                f"(size {scale_of(base):.3g}), though their content is not seen",
            )
            return
        if ctx.kind == "seq2seq":  # as in transformers' own Bart and Marian: nothing tells a bug
            raise NotApplicable(
                f"targets are padded on the right: on the left, positions count the padding and "
                f"logits move by {distance(real, base):.3g}"
            )
        yield Finding(
            "positions.left_padding",
            f"{PADS} masked tokens on the left move the logits of the same prompt by "
            f"{distance(real, base):.3g} (size {scale_of(base):.3g}), though their content is not "
            f"seen",
        )
    elif ctx.kind == "decoder" and (turned := _turned(ctx, whole, padded)):
        yield Finding(
            "positions.left_padding",
            f"{PADS} masked tokens on the left turn the queries and keys of the same prompt by "
            f"{turned:.2g} of their size: its first token stands at position {PADS}, not 0. The "
            f"logits stay, since scores depend on distances; but a short prompt in a wide batch "
            f"comes that much sooner to the end of the positions that were trained",
        )


@check("positions.left_padding", kinds=("decoder",))
def by_length(ctx: Context) -> Iterator[Finding]:
    """The beginning of a text alone gives what it gives with more behind it."""
    batch, n = ctx.one, ctx.positions()
    if not ctx.call.x.ids or ctx.call.slots or not ctx.seen.sites:
        raise NotApplicable("it takes no padding mask")
    try:
        seen, alone = ctx.watch(replace(batch, x=batch.x[:, : n // 2]))
    except Exception as error:
        raise NotApplicable(f"it runs at one length only: {error}") from error
    whole = ctx.run(batch)[:, : n // 2]
    if alone.shape == whole.shape and ctx.moved(alone, whole) and seen.sites:
        short, long = seen.sites[0].scores, ctx.seen.sites[0].scores
        same = short.shape[1:] == (n // 2, n // 2) and long.shape[1:] == (n, n)
        if same and ctx.moved(short, long[:, : n // 2, : n // 2]):
            yield Finding(
                "positions.left_padding",
                f"the first {n // 2} of {n} tokens give other outputs alone than with more behind "
                f"them (by {distance(alone, whole):.3g}), and the scores of the first attention "
                f"move already: positions are counted from the end, and follow the length",
                seen.sites[0].where,
            )
            return
    if not ctx.hides:
        raise NotApplicable("it takes no padding mask")
