# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Dropout: silent in eval, active in training where it is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from allformer.auditor.context import PARTS, Context, check
from allformer.auditor.probe import DROPOUTS, distance, duplicate, part_outputs, scale_of
from allformer.auditor.report import Finding


class _Calls(TorchFunctionMode):
    """Calls of functional dropout: (p, training)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[float, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (nn.functional.dropout, torch.dropout, nn.functional.alpha_dropout):
            p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            on = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
            self.calls.append((float(p), bool(on)))
        return func(*args, **kwargs)


@check("dropout.eval", kinds=PARTS)
def in_eval(ctx: Context) -> Iterator[Finding]:
    """Two runs in eval are equal."""
    batch = ctx.call.batch(2)
    a, b = ctx.run(batch), ctx.run(batch)
    gap = distance(a, b)
    if gap > 1e-9 * scale_of(a):
        where = _where(ctx, batch)
        ctx.call.silence = True  # what random numbers move would look like every other bug
        with torch.no_grad():
            one, two = (replace(ctx.call, seed=n)(ctx.loud, batch).main for n in (0, 1))
        ctx.call.draws = distance(one, two) > 1e-9 * scale_of(a)
        yield Finding(
            "dropout.eval",
            f"two runs of one input in eval differ by {gap:.3g} (outputs are of size "
            f"{scale_of(a):.3g})",
            where,
        )


def _where(ctx: Context, batch: Any) -> str:
    runs = [part_outputs(ctx.loud, lambda: ctx.run(batch)) for _ in range(2)]
    for (name, a), (_, b) in zip(*runs, strict=False):
        if a.shape == b.shape and distance(a, b) > 1e-9 * scale_of(a):
            return name
    return ""


@check("dropout.train", kinds=PARTS)
def in_training(ctx: Context) -> Iterator[Finding]:
    """Declared dropout acts: two runs in training mode differ."""
    twin = duplicate(ctx.loud).train()  # loud: a start at 0 would hide it
    call = replace(ctx.call, silence=False)
    declared = [(n, m) for n, m in twin.named_modules() if isinstance(m, DROPOUTS) and m.p > 0]
    batch = call.batch(2)
    seen = _Calls()
    with torch.no_grad():
        with seen:
            a = call(twin, batch).main
        b = call(twin, batch).main
    off = [p for p, on in seen.calls if p > 0 and not on]
    if distance(a, b) > 1e-9 * scale_of(a):
        return
    if off:
        yield Finding(
            "dropout.train",
            f"in training mode functional dropout is called with p = {max(off):g} and "
            f"training=False, {len(off)} times; two runs are equal",
        )
    elif declared:
        yield Finding(
            "dropout.train",
            f"{len(declared)} dropout modules are declared (p = {declared[0][1].p:g}), but two "
            f"runs in training mode are equal",
            declared[0][0],
        )
