"""Residual connections: a block whose sub-layers are silent must still pass its input on.

Silent means that every matrix and every bias of a linear map is zero, while norms stay:
pre-norm x + f(norm(x)) is then the identity, post-norm norm(x + f(x)) is a norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import MODELS
from allformer.auditor.checks.layers import lists
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.probe import distance, duplicate, each_part, lies_in, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

MOST = 8  # linear maps that are silenced, one by one
Captured = tuple[str, nn.Module, tuple[Any, ...], dict[str, Any], Tensor]


@check("residual.missing", kinds=MODELS)
def bottleneck(ctx: Context) -> Iterator[Finding]:
    """Silence one linear map between attentions: the output must still depend on the input."""
    sites = ctx.sites()
    for number, side, what in islice(_between(ctx, sites), MOST):
        if _depends(ctx, number, side):
            continue
        if not _depends(ctx, -1, side):
            return  # it never did: another check says so
        where = ctx.seen.paths.get(number, "")
        yield Finding(
            "residual.missing",
            where,
            f"with {what} silent ({where or 'one linear map'} gives 0) no output depends on the "
            f"{side} any more: nothing goes around it",
        )
        return


def _between(ctx: Context, sites: list[Site]) -> Iterator[tuple[int, str, str]]:
    """Output projections, and the linear maps between one attention and the next."""
    n = ctx.positions()
    free = ctx.seen.other_linears()
    for here, after in zip(sites, [*sites[1:], None], strict=True):
        side = "input" if here.q.shape[1] == n else "source"
        if here.out_op >= 0 and here.q.shape[0] > 0:  # noqa: SIM102
            if sum(s.out_op == here.out_op for s in sites) == 1 and _one_projection(here, sites):
                yield here.out_op, side, "the output projection of an attention"
        if after is None or after.q.shape[1] != here.q.shape[1]:
            continue
        end = (
            min(t.linear for t in (after.q_tag, after.k_tag) if t.linear >= 0)
            if after.q_tag.linear >= 0
            else -1
        )
        for number in free:
            if here.out_op < number < end:
                yield number, side, "a linear map of the feed-forward layer"


def _one_projection(site: Site, sites: list[Site]) -> bool:
    """Not one of several heads that are computed one by one."""
    return not any(s is not site and s.where == site.where and s.out_op < 0 for s in sites)


def _depends(ctx: Context, number: int, side: str) -> bool:
    """Whether the output moves with the input (or the source) while one map gives 0."""
    inject = {number: lambda out, args: out * 0} if number >= 0 else {}
    one = ctx.one
    if side == "source" and one.source is not None:
        other = replace(one, source=ctx.call.other(one.source))
    else:
        other = replace(one, x=ctx.call.other(one.x))
    base, moved = ctx.inject(one, inject), ctx.inject(other, inject)
    return distance(base, moved) > 1e-9 * scale_of(base)


@check("residual.missing", "residual.after_norm", kinds=PARTS)
def residual(ctx: Context) -> Iterator[Finding]:
    """Silence every block; see what is left of its input."""
    found = blocks(ctx)
    if not found:
        raise NotApplicable("no blocks were found: siblings with attention that keep the shape")
    for name, block, args, kwargs, x in found:
        verdict = _judge(name, block, args, kwargs, x)
        if verdict is not None:
            yield verdict
            return


def blocks(ctx: Context) -> list[Captured]:
    """One block of each class, with what it was called with."""
    if ctx.kind == "attention":
        return []
    sites = {s.where for s in ctx.seen.sites}
    chosen: dict[type, tuple[str, nn.Module]] = {}
    names = {id(m): n for n, m in ctx.loud.named_modules()}
    if ctx.kind == "block":
        chosen[type(ctx.loud)] = ("", ctx.loud)
    else:
        for _, inside in lists(ctx.loud):
            for m in inside:
                if isinstance(m, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                    continue
                path = names[id(m)]
                linears = [ctx.seen.paths[n] for n in ctx.seen.other_linears()]
                has = [any(lies_in(w, path) for w in ws) for ws in (sites, linears)]
                if all(has):  # attention and feed-forward
                    chosen.setdefault(type(m), (path, m))
    # of nested lists keep the outer ones: a block is the largest repeated part
    outer = {}
    for kind, (path, m) in chosen.items():
        others = [p for k, (p, _) in chosen.items() if k is not kind and p]
        if not any(path.startswith(p + ".") for p in others):
            outer[kind] = (path, m)
    return captured(ctx, {path for path, _ in outer.values()})


def captured(ctx: Context, paths: set[str]) -> list[Captured]:
    """Those of the parts that keep the shape, with what they were called with."""
    kept: dict[str, Captured] = {}

    def look(path: str, m: Any, args: Any, kwargs: Any, out: Any) -> None:
        if path not in paths or path in kept:
            return
        first = out[0] if isinstance(out, tuple) and out else out
        given = (a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        x = next(given, None)
        if (
            isinstance(first, Tensor)
            and x is not None
            and x.is_floating_point()
            and first.shape == x.shape
        ):
            kept[path] = path, m, args, kwargs, x.detach()

    each_part(ctx.loud, lambda: ctx.run(ctx.call.batch(2)), look)
    return list(kept.values())


@torch.no_grad()
def silenced(block: nn.Module) -> nn.Module:
    """A copy in which every matrix is 0, every gain 1 and every shift 0."""
    silent = duplicate(block).eval()
    for m in silent.modules():
        own = list(m.parameters(recurse=False))
        matrices = any(p.ndim >= 2 and min(p.shape) > 1 for p in own)
        for p in own:
            if matrices or (p.ndim >= 2 and min(p.shape) > 1):
                p.zero_()
            elif p.numel() > 1:
                p.fill_(1.0 if float(p.mean()) > 0.5 else 0.0)
    return silent


def another(x: Tensor) -> Tensor:
    """Another input of the same shape."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) * 3 + 0.5


@torch.no_grad()
def _judge(name: str, block: nn.Module, args: Any, kwargs: Any, x: Tensor) -> Finding | None:
    silent, new = silenced(block), another(x)
    a, b = call_block(silent, args, kwargs, x, x), call_block(silent, args, kwargs, x, new)
    if a is None or b is None:
        return None
    inputs = float((new - x).abs().max())
    passed = float((b - a).abs().max()) / inputs
    if passed < 1e-6:
        return Finding(
            "residual.missing",
            name,
            f"with silent sub-layers {type(block).__name__} gives the same output for every input "
            f"(moved {passed:.1e} of the input's change): nothing goes around a sub-layer",
        )
    if float((b - new).abs().max()) < 1e-5 * scale_of(new):
        return None  # pre-norm: the identity
    return after_norm(name, block, args, kwargs, x, new, b)


def after_norm(
    name: str, block: nn.Module, args: Any, kwargs: Any, x: Tensor, new: Tensor, silent: Tensor
) -> Finding | None:
    """A silent block that is a norm must be post-norm: its loud output is normalised too."""
    if rows_off(silent) > 0.02:
        return None  # neither the identity nor a norm: a block of another make
    plain = duplicate(block).eval()
    for m in plain.modules():
        own = list(m.parameters(recurse=False))
        if own and all(p.ndim == 1 or min(p.shape) == 1 for p in own):
            for p in own:
                if p.numel() > 1:
                    p.fill_(1.0 if float(p.mean()) > 0.5 else 0.0)
    out = call_block(plain, args, kwargs, x, new)
    if out is None or rows_off(out) < 0.05:
        return None
    return Finding(
        "residual.after_norm",
        name,
        f"with silent sub-layers {type(block).__name__} normalises its input (mean square "
        f"{float(silent.pow(2).mean()):.3f}), but its own output is not normalised (mean square "
        f"{float(out.pow(2).mean()):.3g}): what is added to the sub-layer is norm(x), not x",
    )


def rows_off(y: Tensor) -> float:
    """How far the mean squares of the rows are from 1."""
    return float((y.pow(2).mean(-1) - 1).abs().max())


def call_block(block: nn.Module, args: Any, kwargs: Any, old: Tensor, new: Tensor) -> Tensor | None:
    """The block with `new` in place of `old`."""

    def swap(value: Any) -> Any:
        same = isinstance(value, Tensor) and value.shape == old.shape and value.dtype == old.dtype
        return new if same and torch.equal(value, old) else value

    try:
        out = block(*(swap(a) for a in args), **{k: swap(v) for k, v in kwargs.items()})
    except Exception:
        return None
    first = out[0] if isinstance(out, tuple) else out
    return first if isinstance(first, Tensor) and bool(torch.isfinite(first).all()) else None
