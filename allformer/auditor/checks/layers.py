"""Layers that are copies of one another, or one object several times."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.blocks import lists
from allformer.auditor.report import Finding


@check("layers.reused", kinds=PARTS)
def reused(ctx: Context) -> Iterator[Finding]:
    """No list holds one object twice."""
    any_list = False
    for name, inside in lists(ctx.module):
        any_list = True
        different = len({id(m) for m in inside})
        if different < len(inside) and "shared-layers" not in ctx.profile:
            kind = type(inside[0]).__name__
            yield Finding(
                "layers.reused",
                f"{name} has {len(inside)} entries but {different} different object(s) ({kind}): "
                f"{sum(p.numel() for p in inside[0].parameters()):,} parameters serve "
                f"{len(inside) - different + 1} times",
                name,
            )
            return
    called = _called_often(ctx)
    if called:
        ctx.found_profile.append(f"shared layers: {called}")
    if not any_list and not called:
        raise NotApplicable("there is no list of layers")


def _called_often(ctx: Context) -> str:
    """A part with attention in it that runs several times in one pass: shared by design."""
    where = [s.where for s in ctx.seen.sites]
    for path in dict.fromkeys(where):
        times = where.count(path)
        if path and times > 1 and len(set(where)) < times:
            return f"{path} runs {times} times in one pass, and no list holds it twice"
    return ""


@check("layers.identical", kinds=PARTS)
def identical(ctx: Context) -> Iterator[Finding]:
    """Sibling layers start with different random numbers."""
    compared = False
    for name, inside in lists(ctx.module):
        groups: dict[type, list[nn.Module]] = {}
        for m in inside:
            groups.setdefault(type(m), []).append(m)
        for kind, group in groups.items():
            first, second = _random(group[0]), _random(group[1]) if len(group) > 1 else {}
            same = [k for k in first if k in second and torch.equal(first[k], second[k])]
            distinct = [k for k in same if first[k].data_ptr() != second[k].data_ptr()]
            if not first or len(group) < 2:
                continue
            compared = True
            if distinct and len(distinct) == len(first):
                yield Finding(
                    "layers.identical",
                    f"{name}: all {len(distinct)} random tensors of the {len(group)} "
                    f"{kind.__name__} are equal in the first two, e.g. {distinct[0]}",
                    name,
                )
                return
    if not compared:
        raise NotApplicable("there are no sibling layers to compare")


def _random(m: nn.Module) -> dict[str, Tensor]:
    """Its tensors that are not constant."""
    out = {}
    for name, p in m.named_parameters():
        if p.ndim >= 2 and bool((p != p.flatten()[0]).any()):
            out[name] = p.detach()
    return out
