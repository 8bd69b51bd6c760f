"""Norms: over the features of one position, with the formula's variance and a small epsilon.

A norm inside a model is found by what it does: a part without matrices whose output does not
change when its input is doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.norm_formula import formula
from allformer.auditor.evidence.norms import could_be, judge
from allformer.auditor.probe import each_part
from allformer.auditor.report import Finding

MOST = 6


@check("norm.axis", "norm.variance", "norm.epsilon", kinds=(*PARTS, "norm"))
def norms(ctx: Context) -> Iterator[Finding]:
    """Every norm of the module against the formula."""
    found = False
    for where, shape, given in ctx.seen.norm_shapes if ctx.kind != "norm" else []:
        if len(shape) > 1 and len(given) == 3 and shape == given[1:]:
            yield Finding(
                "norm.axis",
                f"layer_norm over {shape} of an input {given}: over positions, not only features",
                where,
            )
            return
    for where, norm, x in _candidates(ctx):
        finding = judge(where, norm, x, sure=ctx.kind == "norm")
        found = found or finding is not False
        if isinstance(finding, Finding):
            yield finding
            return
    if ctx.kind != "norm":
        verdicts = [formula(division) for division in ctx.seen.moments.divisions]
        found = found or any(verdict is not False for verdict in verdicts)
        yield from [v for v in verdicts if isinstance(v, Finding)][:1]
    if not found and not (ctx.kind != "norm" and ctx.seen.norm_shapes):
        raise NotApplicable("no part behaves like a norm")


def _candidates(ctx: Context) -> list[tuple[str, nn.Module, Tensor]]:
    if ctx.kind == "norm":
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 5, ctx.call.x.width, generator=generator, dtype=torch.float64)
        return [("", ctx.loud, x.to(ctx.call.dtype))]
    kept: dict[str, tuple[nn.Module, Tensor]] = {}

    def look(name: str, m: nn.Module, args: Any, _k: Any, out: Any) -> None:
        if (
            name
            and len(args) == 1
            and isinstance(args[0], Tensor)
            and isinstance(out, Tensor)
            and args[0].is_floating_point()
            and args[0].ndim == 3
            and out.shape == args[0].shape
            and could_be(m)
        ):
            kept.setdefault(name, (m, args[0].detach()))

    each_part(ctx.loud, lambda: ctx.run(ctx.call.batch(3)), look)
    chosen: list[tuple[str, nn.Module, Tensor]] = []
    for name, (m, x) in kept.items():
        same = [c for c in chosen if type(c[1]) is type(m)]
        if len(same) < 2 and len(chosen) < MOST:
            chosen.append((name, m, x))
    return chosen
