"""The source's padding must not be seen: not by the encoder, not by the cross-attention.

Which of them sees it is told from the weights: the encoder's are S S, the cross-attention's T S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.looks import sites_of, source_of
from allformer.auditor.evidence.padding import PADS, query_rows, with_padding
from allformer.auditor.infer import padding_influence
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site


def seen_padding(ctx: Context) -> Iterator[Finding]:
    """The source's padding is seen neither by the encoder nor by the cross-attention."""
    source_of(ctx.one)
    evidence = _padding_moves(ctx)
    if not evidence:
        return
    batch, keep = _padded_inside(ctx)
    encoder, across = sites_of(ctx.watch(batch)[0], batch)
    own = _weight_on(encoder, keep, keep) if ctx.kind == "seq2seq" else 0.0
    over = _weight_on(across, torch.ones(batch.x.shape[1], dtype=torch.bool), keep)
    if own > 1e-9:
        rows = query_rows(encoder[0], keep)
        yield Finding(
            "padding.query_axis" if rows else "padding.ignored",
            f"{evidence}; in the encoder real positions give padding a weight of up to {own:.2g}"
            + ("; the rows of padding are masked instead" if rows else ""),
            encoder[0].where,
        )
    if over > 1e-9 or not own > 1e-9:
        said = f"; the cross-attention gives it a weight of up to {over:.2g}" if over > 1e-9 else ""
        yield Finding("cross.mask", evidence + said, across[0].where if over > 1e-9 else "")


check("cross.mask", kinds=("decoder", "block"))(seen_padding)
check("padding.ignored", "padding.query_axis", "cross.mask", kinds=("seq2seq",))(seen_padding)


def _padding_moves(ctx: Context) -> str:
    """How padding of the source moves the output, in words; "" if it does not."""
    call = ctx.call
    if not call.source.keeps and not (call.pad_inside or call.pad is not None):
        raise NotApplicable("no padding of the source can be given (a mask, or pad=)")
    if call.source.keeps:
        score = padding_influence(call, ctx.loud, "source")
        if score is not None and 1e-6 < score < 1e5:  # more: no source token moves anything
            return (
                f"changing masked source tokens moves the output {score:.2g} times as much as "
                f"changing a real one does"
            )
    batch = call.batch(2, max(4, call.length - PADS), source=max(4, call.length - PADS))
    whole = everything(source_of(batch))
    base = ctx.run(replace(batch, source_keep=whole if call.source.keeps else None))
    source, keep = with_padding(ctx, source_of(batch), left=False)
    gap = distance(
        ctx.run(replace(batch, source=source, source_keep=keep if call.source.keeps else None)),
        base,
    )
    if gap > 1e-6 * scale_of(base):
        return f"{PADS} tokens of source padding move the output by {gap:.3g} (size {scale_of(base):.3g})"  # noqa: E501
    return ""


def _padded_inside(ctx: Context) -> tuple[Batch, Tensor]:
    """One row with padding at the end of its source, and which of it is real."""
    source, keep = with_padding(
        ctx, source_of(ctx.call.batch(1, max(4, ctx.call.length - PADS))), False
    )
    batch = replace(ctx.call.batch(1), source=source)
    if source.shape[1] == batch.x.shape[1]:
        batch = replace(batch, x=batch.x[:, :-1])
    return replace(batch, source_keep=keep if ctx.call.source.keeps else None), keep[0]


def _weight_on(sites: list[Site], rows: Tensor, keep: Tensor) -> float:
    """The largest weight that these rows give to padding."""
    return max(
        (float(s.weights[:, rows][:, :, ~keep].nan_to_num(0.0).abs().max())
         for s in sites),
        default=0.0,
    )  # fmt: skip
