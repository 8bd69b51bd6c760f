"""Norms of layers that are no parts of their own: norms and sub-layers in bare lists, joined in the
forward pass of the model.

With every linear map from the first attention to the last one silent, nothing is left of the layers
but the norms of the stream itself. A norm whose output is lost then is one of a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import MODELS
from allformer.auditor.context import Context, check
from allformer.auditor.evidence.blocks import blocks, lists
from allformer.auditor.evidence.norms import could_be, judge
from allformer.auditor.probe import distance, each_part, lies_in, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Inject, Site

STREAM, BRANCH = "stream", "branch"


@dataclass
class Norm:
    """A norm that ran once in a silent pass."""

    name: str
    before: int  # the number of the linear map that comes next
    given: Tensor
    out: Tensor
    side: str = ""  # of the stream, or of a branch
    reader: str = ""  # a linear map that reads what it gives
    at_start: bool = False  # before all the linear maps


@check("residual.after_norm", kinds=MODELS)
@torch.no_grad()
def norms_of_the_stream(ctx: Context) -> Iterator[Finding]:
    """No model norms the stream before one sub-layer and a branch before the next."""
    held = {type(block) for _, block, *_ in blocks(ctx)}
    taken = [n for n, m in ctx.loud.named_modules() if type(m) in held]
    found = [s for s in ctx.seen.sites if s.q_tag.linear >= 0]
    for length in dict.fromkeys(s.q.shape[1] for s in found):
        sites = [s for s in found if s.q.shape[1] == length]
        if any(lies_in(s.where, n) for s in sites for n in taken):
            continue
        norms = _stream(ctx, _inside(ctx, sites), length)
        finding = _by_turns(norms) or _first_of_a_group(ctx, norms)
        if finding is not None:
            yield finding
            return


def _inside(ctx: Context, sites: list[Site]) -> list[int]:
    """The linear maps from the first attention to the last one."""
    first = min(t.linear for s in sites for t in (s.q_tag, s.k_tag, s.v_tag) if t.linear >= 0)
    last = max(max(s.out_op, s.q_tag.linear) for s in sites)
    return [n for n in ctx.seen.outputs if first <= n <= last]


def _stream(ctx: Context, inside: list[int], length: int) -> list[Norm]:
    """The norms between the first linear map and the last, each of the stream or of a branch."""
    if not inside:
        return []
    read: dict[int, list[Tensor]] = {}

    def silent(number: int) -> Any:
        def change(out: Tensor, args: Any) -> Tensor:
            read.setdefault(number, [a.detach().clone() for a in args if isinstance(a, Tensor)])
            return out * 0

        return change

    inject = {n: silent(n) for n in inside}
    calls: list[Norm] = []

    def look(name: str, m: nn.Module, args: Any, _k: Any, out: Any) -> None:
        given = args[0] if name and len(args) == 1 and could_be(m) else None
        if not isinstance(given, Tensor) or not isinstance(out, Tensor):
            return
        if given.ndim == 3 and given.shape == out.shape and given.shape[1] == length:
            start = mode.count <= inside[0]
            calls.append(Norm(name, mode.count, given.clone(), out.clone(), at_start=start))

    with Inject(inject) as mode:
        each_part(ctx.loud, lambda: ctx.run(ctx.one), look)
    names = [c.name for c in calls]
    once = [c for c in calls if names.count(c.name) == 1 and inside[0] <= c.before <= inside[-1]]
    norms = [c for c in once if judge(c.name, ctx.loud.get_submodule(c.name), c.given) is True]
    base = ctx.inject(ctx.one, inject)
    now = norms[0].given if norms else None
    for c in norms:
        assert now is not None
        if ctx.moved(_bumped(ctx, c.name, inject), base):
            readers = (n for n in inside if any(_same(a, c.out) for a in read.get(n, [])))
            c.side, c.reader = STREAM, ctx.seen.paths.get(next(readers, -1), "")
            now = c.out
        elif _same(c.given, now):
            c.side = BRANCH
    return [c for c in norms if c.side]


def _bumped(ctx: Context, name: str, inject: Any) -> Tensor:
    """The output of the silent model when this norm gives something else."""

    def bump(_m: Any, _a: Any, out: Tensor) -> Tensor:
        return out + torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype).cos()

    hook = ctx.loud.get_submodule(name).register_forward_hook(bump)
    try:
        return ctx.inject(ctx.one, inject)
    finally:
        hook.remove()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers; a linear map may get them as (B·T, D)."""
    if a.numel() != b.numel() or a.shape[-1] != b.shape[-1]:
        return False
    return distance(a.reshape(b.shape), b) < 1e-9 * scale_of(b)


def _by_turns(norms: list[Norm]) -> Finding | None:
    """A stream that is normed is read as it is by one sub-layer, through a norm by another; and so
    again, unless it was normed by a sub-layer's norm: the embeddings may have one of their own."""
    pairs = ((a, b) for a, b in pairwise(norms) if a.reader and b.side == BRANCH)
    here, branch = next(pairs, (None, None))
    if here is None or branch is None:
        return None
    if here.at_start and all(c.side == BRANCH for c in norms if c is not here):
        return None
    return Finding(
        "residual.after_norm",
        f"{here.name} norms the stream itself: with silent sub-layers its output goes on, and "
        f"{here.reader} reads it as it is; {branch.name} norms only what a sub-layer reads: the "
        f"layers are neither pre-norm nor post-norm",
        here.name,
    )


def _first_of_a_group(ctx: Context, norms: list[Norm]) -> Finding | None:
    """A layer is a list of parts: its stream is normed first, and not at its end."""
    for path, inside in lists(ctx.loud):
        groups = [m for m in inside if isinstance(m, nn.ModuleList | nn.ModuleDict)]
        if len(groups) < 2 or len(groups) != len(inside):
            continue
        names = {id(m): n for n, m in ctx.loud.named_modules()}
        group = names[id(groups[0])]
        own = [c for c in norms if lies_in(c.name, group)]
        linears = [n for n, where in ctx.seen.paths.items() if lies_in(where, group)]
        if not own or not linears or any(c.side == BRANCH for c in own):
            continue
        first = own[0]
        after = [c for c in own if c.before > max(linears)]
        if first.before <= min(linears) and first.reader and not after:
            return Finding(
                "residual.after_norm",
                f"in each item of {path} part {first.name.removeprefix(group + '.')} comes first, "
                f"and its output takes the place of the stream: with silent sub-layers it goes on, "
                f"and no norm follows the last sum: what is added to the sub-layer is norm(x), "
                f"not x",
                first.name,
            )
    return None
