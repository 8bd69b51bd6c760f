# mypy: disable-error-code="no-untyped-call"
"""Documents packed into one row must not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.probe import distance, scale_of
from allformer.auditor.report import Finding


@check("packing.leak", kinds=("decoder", "encoder"))
def packing(ctx: Context) -> Iterator[Finding]:
    """Packed = separate, for a model that is told which document a token belongs to."""
    if not ctx.call.documents_name:
        if ctx.eos is None or not ctx.call.x.ids or ctx.kind != "decoder":
            raise NotApplicable("it takes no document ids")
        yield from _by_end(ctx, ctx.eos)
        return
    whole = ctx.call.batch(1, max(6, ctx.call.length - ctx.call.length % 2))
    n = whole.x.shape[1]
    half = n // 2
    documents = (torch.arange(n) >= half).long()[None]
    base = ctx.run(replace(whole, documents=documents))
    other = whole.x.clone()
    other[:, :half] = ctx.call.other(other)[:, :half]
    changed = ctx.run(replace(whole, x=other, documents=documents))
    gap = distance(changed[:, half:], base[:, half:])
    if gap > 1e-6 * scale_of(base):
        yield Finding(
            "packing.leak",
            f"changing the first of two packed documents moves the second's outputs by {gap:.3g} "
            f"(size {scale_of(base):.3g})",
        )
        return
    alone = ctx.run(
        replace(whole, x=whole.x[:, half:], documents=torch.zeros(1, n - half, dtype=torch.long))
    )
    gap = distance(base[:, half:], alone)
    if gap > 1e-6 * scale_of(base):
        yield Finding(
            "packing.leak",
            f"the second of two packed documents gives other outputs than alone, by {gap:.3g}: its "
            f"positions do not begin anew",
        )


def _by_end(ctx: Context, end: int) -> Iterator[Finding]:
    """Where positions begin anew after the end of a document, attention must too."""
    batch = ctx.call.batch(1, max(6, ctx.call.length - ctx.call.length % 2))
    half = batch.x.shape[1] // 2
    plain = torch.where(batch.x == end, ctx.call.other(batch.x), batch.x)
    packed = plain.clone()
    packed[:, half - 1] = end
    before, seen = _Halves(half), _Halves(half)
    with before:
        ctx.run(replace(batch, x=plain))
    with seen:
        base = ctx.run(replace(batch, x=packed))
    if not seen.repeated - before.repeated:
        raise NotApplicable(f"it takes no document ids, and id {end} begins nothing anew")
    other = packed.clone()
    other[:, : half - 1] = ctx.call.other(plain)[:, : half - 1]
    other = other.masked_fill((other == end) & (packed != end), int(plain[0, -1]))
    gap = distance(ctx.run(replace(batch, x=other))[:, half:], base[:, half:])
    if gap > 1e-6 * scale_of(base):
        yield Finding(
            "packing.leak",
            f"positions begin anew after id {end}, the end of a document, but changing what stands "
            f"before it moves the outputs after it by {gap:.3g} (size {scale_of(base):.3g})",
        )


class _Halves(TorchDispatchMode):
    """The operators, by their number, whose result runs the same in both halves of the length."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.half, self.number = half, 0
        self.repeated: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.number += 1
        if isinstance(out, Tensor) and out.is_floating_point() and 2 * self.half in out.shape:
            axis = list(out.shape).index(2 * self.half)
            first, second = out.split(self.half, axis)
            moves = not bool((first == first.narrow(axis, 0, 1)).all())
            if moves and torch.equal(first, second):
                self.repeated.add(self.number)
        return out
