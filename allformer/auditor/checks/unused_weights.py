# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Parameters that nothing uses.

Before it is said, the module is called in other ways: arguments left out or given, more rows, other
weights. What some way of calling uses is a part that was not asked for, or an expert nobody chose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import Call, parameters
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.norms import judge
from allformer.auditor.probe import duplicate, each_part, lies_in, make_loud
from allformer.auditor.report import Finding

HOLDERS = ("torch.nn.modules.module", "torch.nn.modules.container")  # they compute nothing


@check("weights.unused", kinds=PARTS)
def unused(ctx: Context) -> Iterator[Finding]:
    """Every parameter gets a gradient from some output."""
    twin = duplicate(ctx.loud).eval()
    for p in twin.parameters():
        p.requires_grad_(p.is_floating_point())
    with torch.enable_grad():
        total = _everything(ctx, twin)
        if ctx.call.labels_name and ctx.call.x.ids:
            with contextlib.suppress(Exception):
                total = total + _everything(ctx, twin, ctx.call.batch(2, seed=4).x)
        if not total.requires_grad:
            raise NotApplicable("the outputs do not depend on any parameter")
        total.backward()
    dead = _dead(ctx, twin)
    for again in _other_ways(ctx, twin) if dead else ():
        with contextlib.suppress(Exception), torch.enable_grad():
            again().backward()
        left = _dead(ctx, twin)
        if len(left) < len(dead):
            gone = [n for n in dead if n not in left]
            ctx.notes.append(f"used only when called in another way: {', '.join(gone[:5])}")
        dead = left
        if not dead:
            break
    beside = _pooled(ctx, twin, dead)
    if beside:
        ctx.notes.append(f"heads whose output is not given back: {', '.join(beside[:5])}")
    dead = {n: p for n, p in dead.items() if n not in beside}
    telling = [
        n for n, p in dead.items() if _wide(p) or _of_norm(twin, n) or _for_heads(ctx, twin, n, p)
    ]
    if telling:
        names = sorted(dead, key=lambda n: n not in telling)
        yield Finding(
            "weights.unused",
            f"{len(dead)} parameters with {sum(p.numel() for p in dead.values()):,} numbers get no "
            f"gradient: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}",
            names[0],
        )
    elif dead:
        ctx.notes.append(f"vectors without gradient: {', '.join(list(dead)[:5])}")


def _wide(p: Tensor) -> bool:
    return sum(1 for n in p.shape if n > 1) >= 2


def _dead(ctx: Context, twin: nn.Module) -> dict[str, Tensor]:
    """Parameters without gradient so far."""
    frozen = {n for n, p in ctx.module.named_parameters() if not p.requires_grad}
    return {
        n: p for n, p in twin.named_parameters()
        if n not in frozen and p.numel() > 1
        and (p.grad is None or (_wide(p) and not bool(p.grad.any())))
    }  # fmt: skip


def _other_ways(ctx: Context, twin: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Other calls that a module may be made for."""
    call = ctx.call
    for slot in call.slots:
        fewer = replace(call, slots=[s for s in call.slots if s is not slot])
        yield partial(_everything, ctx, twin, call=fewer)
    if call.user is None:
        given = call.arguments(call.batch(2))
        for name, argument in parameters(ctx.module).items():
            if name in given or name == call.labels_name:
                continue
            if argument.default is False:
                yield partial(_everything, ctx, twin, more={name: True})
            elif argument.default is None:
                for content in call.batch(2).inputs:
                    ones = torch.ones(content.shape[:2], dtype=torch.long)
                    yield partial(_everything, ctx, twin, more={name: ones})
    for seed in (2, 3, 4):  # a router chooses others of the experts
        make_loud(twin, seed, frozenset({call.x.vocab, call.source.vocab}))
        yield partial(_everything, ctx, twin, rows=16, seed=seed)


def _pooled(ctx: Context, twin: nn.Module, dead: dict[str, Tensor]) -> list[str]:
    """Parameters of parts that run, but give one vector for each row beside outputs by position."""
    owners = {n.rpartition(".")[0] for n in dead}
    found: set[str] = set()
    rows = 3

    def look(name: str, _m: Any, _a: Any, _k: Any, out: Any) -> None:
        if name in owners and isinstance(out, Tensor) and out.ndim == 2 and out.shape[0] == rows:
            found.add(name)

    if owners:
        with torch.no_grad():
            main: list[Tensor] = []
            each_part(twin, lambda: main.append(ctx.call(twin, ctx.call.batch(rows)).main), look)
        if main[0].ndim != 3:
            return []
    return [n for n in dead if n.rpartition(".")[0] in found]


def _of_norm(twin: nn.Module, name: str) -> bool:
    """Whether this is the gain of a norm that takes no part."""
    owner = twin.get_submodule(name.rpartition(".")[0])
    if owner is twin or any(_wide(p) for p in owner.parameters()):
        return False
    p = twin.get_parameter(name)
    return judge(name, owner, torch.zeros(2, 5, p.numel(), dtype=p.dtype)) is not False


def _for_heads(ctx: Context, twin: nn.Module, name: str, p: Tensor) -> bool:
    """Whether it is a number for each head, kept where an attention is computed: an attention
    sink, a slope, a temperature."""
    owner = name.rpartition(".")[0]
    kept_by = type(twin.get_submodule(owner)).__module__
    if not owner or (kept_by.startswith("torch.nn.") and kept_by not in HOLDERS):
        return False
    near = (
        s for s in ctx.seen.sites if lies_in(s.where, owner) or lies_in(owner, s.where or owner)
    )
    return any(s.q.shape[0] == p.numel() for s in near)


def _everything(
    ctx: Context,
    twin: nn.Module,
    labels: Tensor | None = None,
    call: Call | None = None,
    rows: int = 2,
    seed: int = 0,
    more: dict[str, Any] | None = None,
) -> Tensor:
    """One number that every output is part of."""
    out = (call or ctx.call)(twin, ctx.call.batch(rows, seed=seed), labels, **(more or {}))
    total = torch.zeros((), dtype=ctx.call.dtype)
    for t in out.tensors:
        if t.requires_grad:
            weight = torch.linspace(0.5, 1.5, max(1, t.numel()), dtype=t.dtype).view(t.shape).cos()
            total = total + (t * weight).sum().to(total.dtype)
    return total
