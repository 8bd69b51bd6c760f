"""Batches with padding, and what tells how a module takes it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import Context
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
            f"padding is hidden with {used[0].name} as {used[0].encoding}, but such a mask with "
            f"nothing to hide moves the outputs by {distance(given, bare):.3g} (size "
            f"{scale_of(bare):.3g}): it is read the other way round elsewhere, as for positions",
        )
    ]


def query_rows(site: Site, keep: Tensor) -> bool:
    """The rows of padding are blank (even, zero or NaN), those of real tokens are not."""
    spread = site.weights.nan_to_num(0.0).std(-1)  # N T
    return float(spread[:, ~keep].max()) < 1e-9 < 1e-6 < float(spread[:, keep].min())


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
