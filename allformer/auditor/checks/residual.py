"""Residual connections: a block whose sub-layers are silent must still pass its input on.

Silent means that every matrix and every bias of a linear map is zero, while norms stay:
pre-norm x + f(norm(x)) is then the identity, post-norm norm(x + f(x)) is a norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import MODELS
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.blocks import (
    after_norm,
    another,
    blocks,
    call_block,
    silenced,
)
from allformer.auditor.probe import distance, lies_in, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

MOST = 8  # linear maps that are silenced, one by one


@check("residual.missing", kinds=MODELS)
def bottleneck(ctx: Context) -> Iterator[Finding]:
    """Silence one linear map between attentions: the output must still depend on the input."""
    sites = ctx.sites()
    for number, side, what in islice(_between(ctx, sites), MOST):
        if _depends(ctx, [number], side):
            continue
        if not _depends(ctx, [], side):
            return  # it never did: another check says so
        where = ctx.seen.paths.get(number, "")
        yield Finding(
            "residual.missing",
            f"with {what} silent ({where or 'one linear map'} gives 0) no output depends on the "
            f"{side} any more: nothing goes around it",
            where,
        )
        return


@check("residual.missing", kinds=MODELS)
def skipped(ctx: Context) -> Iterator[Finding]:
    """An attention whose output reaches the model's only through the sub-layer that follows:
    `h = x + attention(x)`, and then `x + feed_forward(h)`."""
    one = ctx.one
    for attention, after in islice(_followed(ctx, ctx.sites()), MOST):
        silent = {n: lambda out, args: out * 0 for n in (attention, after)}
        without = ctx.inject(one, {after: silent[after]})
        if ctx.moved(ctx.inject(one, silent), without):
            continue  # something goes around
        if not _reads(ctx, after, attention) or not _depends(ctx, [after], "input"):
            continue
        where = ctx.seen.paths.get(after, "")
        heard = ctx.seen.paths.get(attention, "")
        yield Finding(
            "residual.missing",
            f"with {where or 'the sub-layer after an attention'} silent, what {heard or 'it'} "
            f"gives moves no output: the sum after that sub-layer is with what the attention read, "
            f"not with what it gave",
            where,
        )
        return


@check("residual.missing", kinds=MODELS)
def side_by_side(ctx: Context) -> Iterator[Finding]:
    """Silence all of a layer, as where attention and feed-forward stand side by side: the output
    must still depend on the input."""
    for here, after in islice(pairwise(ctx.sites()), MOST):
        alike = here.q.shape == after.q.shape and here.k.shape[1] == here.q.shape[1]
        begin, end = (min(s.q_tag.linear, s.k_tag.linear) for s in (here, after))
        if not alike or begin < 0 or not here.k.shape[1] == after.k.shape[1] == ctx.positions():
            continue
        layer = [n for n in ctx.seen.outputs if begin <= n < end]
        if here.out_op not in layer or _depends(ctx, layer, "input"):
            continue
        if not _depends(ctx, [], "input"):
            return  # it never did: another check says so
        where = ctx.seen.paths.get(here.out_op, "")
        yield Finding(
            "residual.missing",
            f"with the {len(layer)} linear maps of a layer silent (from the queries to what comes "
            f"before the next: {where or 'an attention'} among them) no output depends on the "
            f"input any more: nothing goes around the layer",
            where,
        )
        return


def _followed(ctx: Context, sites: list[Site]) -> Iterator[tuple[int, int]]:
    """Output projections of attentions, and the last linear map before the next attention."""
    n, free = ctx.positions(), ctx.seen.other_linears()
    for here, after in pairwise(sites):
        alone = sum(s.out_op == here.out_op for s in sites) == 1 and _one_projection(here, sites)
        if here.out_op < 0 or not alone or here.q.shape[1] != n or after.q.shape[1] != n:
            continue
        begins = min((t.linear for t in (after.q_tag, after.k_tag) if t.linear >= 0), default=-1)
        between = [number for number in free if here.out_op < number < begins]
        if between:
            yield here.out_op, between[-1]


def _reads(ctx: Context, after: int, attention: int) -> bool:
    """Whether a linear map still reads the input when an attention is silent: not its output
    alone, as the second of two output projections does."""
    kept: list[Tensor] = []

    def keep(out: Tensor, _args: Any) -> Tensor:
        kept.append(out)
        return out

    inject = {attention: lambda out, args: out * 0, after: keep}
    for batch in (ctx.one, replace(ctx.one, x=ctx.call.other(ctx.one.x))):
        ctx.inject(batch, inject)
    return ctx.moved(kept[1], kept[0])


def _between(ctx: Context, sites: list[Site]) -> Iterator[tuple[int, str, str]]:
    """Output projections, and the linear maps between one attention and the next."""
    n = ctx.positions()
    free = ctx.seen.other_linears()
    for here, after in zip(sites, [*sites[1:], None], strict=True):
        side = "source" if ctx.one.source is not None and here.q.shape[1] != n else "input"
        if here.out_op >= 0 and here.q.shape[0] > 0:  # noqa: SIM102
            if sum(s.out_op == here.out_op for s in sites) == 1 and _one_projection(here, sites):
                yield here.out_op, side, "the output projection of an attention"
        if after is None or after.q.shape[1:] != here.q.shape[1:]:
            continue
        if after.q.numel() != here.q.numel():
            continue  # fewer positions of more numbers: nothing fits around what joins them (Swin)
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


def _depends(ctx: Context, silent: list[int], side: str) -> bool:
    """Whether the output moves with the input (or the source) while some maps give 0."""
    inject = {number: lambda out, args: out * 0 for number in silent}
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
        if verdict is not None and not _only_attention(ctx, name):
            yield verdict
            return


def _only_attention(ctx: Context, name: str) -> bool:
    """An attention that makes queries and keys in several steps (latent ones) is no block: no
    linear map comes after its scores, and the model does without its output."""
    inside = [s.op for s in ctx.sites() if lies_in(s.where, name)]
    others = [n for n in ctx.seen.other_linears() if lies_in(ctx.seen.paths[n], name)]
    if not name or not inside or any(n > max(inside) for n in others):
        return False

    def nothing(_m: Any, _a: Any, out: Any) -> Any:
        return (0 * out[0], *out[1:]) if isinstance(out, tuple) else 0 * out

    one = ctx.one
    hook = ctx.loud.get_submodule(name).register_forward_hook(nothing)
    try:
        base, moved = ctx.run(one), ctx.run(replace(one, x=ctx.call.other(one.x)))
    finally:
        hook.remove()
    return ctx.moved(moved, base)


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
            f"with silent sub-layers {type(block).__name__} gives the same output for every input "
            f"(moved {passed:.1e} of the input's change): nothing goes around a sub-layer",
            name,
        )
    if float((b - new).abs().max()) < 1e-5 * scale_of(new):
        return None  # pre-norm: the identity
    return after_norm(name, block, args, kwargs, x, new, b)
