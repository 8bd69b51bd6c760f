"""One row of a batch must not move another, and equal rows give equal outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.probe import distance, each_part, scale_of
from allformer.auditor.report import Finding


def _heads(ctx: Context) -> int:
    counts = [s.q.shape[0] for s in ctx.seen.sites]
    return min(max(counts, default=3), 16)


@check("batch.mixing", kinds=PARTS)
def mixing(ctx: Context) -> Iterator[Finding]:
    """Change row j and its mask: row i stays; with all sizes distinct and with as many rows as heads or positions."""  # noqa: E501
    length = ctx.positions()
    sizes = [3 if _heads(ctx) != 3 else 5, max(2, _heads(ctx)), length]
    if sum(p.numel() for p in ctx.loud.parameters()) > 3_000_000:
        sizes.pop()  # as many rows as positions: only where that is cheap
    tries = [(rows, 1) for rows in dict.fromkeys(sizes)]
    for rows, one in [*tries, (sizes[0], 0), (sizes[0], sizes[0] - 1)]:
        bare = ctx.call.batch(rows)
        changed = bare
        for side in bare.sides:
            content = bare.content(side).clone()
            content[one] = ctx.call.other(content)[one]
            changed = replace(changed, **{side: content})
        batch, more = _padded(ctx, bare, one, 2), _padded(ctx, changed, one, 3)
        try:
            base = ctx.run(batch)
        except Exception:
            if batch is bare:
                raise
            batch, more = bare, changed
            base = ctx.run(batch)
        moved = ctx.run(more)
        real = [i for i in range(rows) if i != one]
        gap = [distance(moved[i], base[i]) for i in real]
        worst = max(gap)
        if worst > 1e-6 * scale_of(base):
            row = real[gap.index(worst)]
            yield Finding(
                "batch.mixing",
                f"changing row {one} of {rows} moves row {row} by {worst:.3g} (outputs are of size "
                f"{scale_of(base):.3g})",
            )
            return
    yield from _along_rows(ctx, base) or _padding_of_others(ctx)


def _along_rows(ctx: Context, base: torch.Tensor) -> list[Finding]:
    """What is read of a row may be a token of its own, the same in each: its keys tell."""
    if base.ndim == 3 or ctx.call.time_first:
        return []
    for rows in (5, 7):
        seen = ctx.watch(ctx.call.batch(rows))[0].sites
        if not seen or any(s.k.shape[1] != rows for s in seen) or ctx.positions() == rows:
            return []
    return [
        Finding(
            "batch.mixing",
            f"with {rows} rows the attention has {rows} keys, whatever the length: it runs along "
            f"the rows of the batch ((T, B, C) is meant, or batch_first=True)",
            seen[0].where,
        )
    ]


def _padding_of_others(ctx: Context) -> Iterator[Finding]:
    """Mark the end of a row as padding: the other rows stay. Masks repeated in the wrong order move them."""  # noqa: E501
    if ctx.call.lone_mask:
        rows = _heads(ctx)
        yield Finding(
            "batch.mixing",
            f"{ctx.call.lone_mask} of shape (rows, {ctx.positions()}) is taken only for 1 row, or "
            f"for {rows}, as many as there are heads: it is broadcast along the heads, so that a "
            f"head gets the padding of another row",
        )
        return
    rows = 3
    for side, one in product(ctx.one.sides, (1, 0, 2)):
        marked = _marked(ctx, ctx.call.batch(rows), side, one)
        if marked is None:
            continue
        base, moved = (ctx.run(batch) for batch in marked)
        gap = {i: distance(moved[i], base[i]) for i in range(rows) if i != one}
        worst = max(gap, key=lambda i: gap[i])
        if gap[worst] > 1e-6 * scale_of(base):
            what = "the last 3 tokens" if side == "x" else "the last 3 source tokens"
            yield Finding(
                "batch.mixing",
                f"marking {what} of row {one} as padding moves row {worst} by {gap[worst]:.3g} "
                f"(outputs are of size {scale_of(base):.3g}): rows get the mask of another row "
                f"(one row's for all, or repeat instead of repeat_interleave)",
            )
            return


def _marked(ctx: Context, batch: Batch, side: str, one: int) -> tuple[Batch, Batch] | None:
    """The batch without padding, and with padding at the end of row `one`."""
    keep = everything(batch.content(side))
    cut = keep.clone()
    cut[one, -3:] = False
    if not ctx.hideable(side):
        return None
    return ctx.hidden(batch, keep, side), ctx.hidden(batch, cut, side)


def _padded(ctx: Context, batch: Batch, one: int, number: int) -> Batch:
    """With so much padding in row `one`, so that a mask that is broadcast wrongly shows."""
    for side in batch.sides:
        if ctx.hideable(side):
            keep = everything(batch.content(side))
            keep[1:, -2:] = False
            keep[one, -number:] = False
            batch = ctx.hidden(batch, keep, side)
    return batch


@check("positions.batch_axis", kinds=PARTS)
def same_rows(ctx: Context) -> Iterator[Finding]:
    """Identical rows give identical outputs, as many rows as heads too."""
    if ctx.call.draws:
        raise NotApplicable("in eval it draws numbers, others for each row")
    for rows in dict.fromkeys((4, max(2, _heads(ctx)))):
        batch = ctx.call.batch(1)
        for side in batch.sides:
            content = batch.content(side)
            batch = replace(batch, **{side: content.expand(rows, *content.shape[1:]).clone()})
        out = ctx.run(batch)
        gaps = [distance(out[i], out[0]) for i in range(1, rows)]
        if max(gaps) > 1e-6 * scale_of(out):
            row = gaps.index(max(gaps)) + 1
            yield Finding(
                "positions.batch_axis",
                f"{rows} identical rows give different outputs: row {row} is {max(gaps):.3g} away "
                f"from row 0 (outputs are of size {scale_of(out):.3g})",
                _where(ctx, batch),
            )
            return


def _where(ctx: Context, batch: Batch) -> str:
    """The first part whose output differs between identical rows."""
    found: list[str] = []  # looked at as it comes: a later part may change it in place

    def look(name: str, _m: object, _a: object, _k: object, out: object) -> None:
        if (
            not found
            and isinstance(out, torch.Tensor)
            and out.is_floating_point()
            and out.ndim >= 2
            and out.shape[0] == batch.x.shape[0]
            and distance(out[1:], out[:1].expand_as(out[1:])) > 1e-6 * scale_of(out)
        ):
            found.append(name)

    each_part(ctx.loud, lambda: ctx.run(batch), look)
    return found[0] if found else ""
