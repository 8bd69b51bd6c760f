"""norm(f(x)) + x, where norm(x + f(x)) is meant: a norm on the branch instead of on the sum.

Some designs norm the branch on purpose (Swin v2, OLMo 2, Gemma 2). They norm the stream too: before
each sub-layer, or after the last block. A stream that no norm ever reads grows with every layer;
and no design norms the branch at one sub-layer of a block and the sum at another.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.context import PARTS, Context, check
from allformer.auditor.evidence.blocks import (
    after_norm,
    another,
    blocks,
    call_block,
    captured,
    lists,
    rows_off,
    silenced,
)
from allformer.auditor.evidence.norms import could_be, judge
from allformer.auditor.probe import distance, each_part, lies_in, scale_of
from allformer.auditor.report import Finding


@check("residual.after_norm", kinds=PARTS)
def branches(ctx: Context) -> Iterator[Finding]:
    """Which norms of a silent block read its input, and which are added to it."""
    for name, block, args, kwargs, x in blocks(ctx):
        silent = silenced(block)
        readers, added = _norms(silent, args, kwargs, x)
        alive = [n for n in readers if _alive(block, n, args, kwargs, x)]
        mixed = _mixed(silent, args, kwargs, x, alive, added)
        if mixed is not None:
            before, after, raw = mixed
            yield Finding(
                "residual.after_norm",
                f"in {type(block).__name__} {before} norms what a sub-layer reads, as pre-norm "
                f"does, but {raw} reads the stream as it is and {after} norms it afterwards, as "
                f"post-norm does: one block has both",
                f"{name}.{after}".lstrip("."),
            )
            return
        if not added:
            continue
        kind, where = type(block).__name__, f"{name}.{added[0]}".lstrip(".")
        out = call_block(silent, args, kwargs, x, another(x))
        assert out is not None
        if rows_off(out) < 0.02:
            yield Finding(
                "residual.after_norm",
                f"in {kind} {added[0]} norms what a sub-layer gives and x is added after it: with "
                f"silent sub-layers its input is 0; {readers[-1] if readers else 'another'} norms "
                f"the sum, as post-norm does: one block has both",
                where,
            )
            return
        gap = 0.0 if readers or ctx.kind == "block" else _grows(ctx, name)
        if gap > 1e-3:
            yield Finding(
                "residual.after_norm",
                f"in {kind} {len(added)} norms ({', '.join(added[:3])}) read only what a sub-layer "
                f"gives, and x is added after them; no norm reads x itself: 4 times the last "
                f"block's output moves the model's by {gap:.2g} of its size, so none follows",
                where,
            )
            return


@check("residual.after_norm", kinds=PARTS)
@torch.no_grad()
def wrapped(ctx: Context) -> Iterator[Finding]:
    """Where no block holds them, sub-layers with their norm and their sum in one part."""
    if ctx.kind in ("attention", "block"):
        return
    held = {type(block) for _, block, *_ in blocks(ctx)}
    names = {id(m): n for n, m in ctx.loud.named_modules()}
    taken = [n for n, m in ctx.loud.named_modules() if type(m) in held]
    free = [s.where for s in ctx.seen.sites if not any(lies_in(s.where, n) for n in taken)]
    paths: dict[type, str] = {}  # one of each class
    for m in (m for _, inside in lists(ctx.loud) for m in inside):
        plain = isinstance(m, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        if not plain and any(lies_in(where, names[id(m)]) for where in free):
            paths.setdefault(type(m), names[id(m)])
    for name, part, args, kwargs, x in captured(ctx, set(paths.values())) if paths else []:
        new = another(x)
        silent = call_block(silenced(part), args, kwargs, x, new)
        found = None if silent is None else after_norm(name, part, args, kwargs, x, new, silent)
        if found is not None:
            yield found
            return


@torch.no_grad()
def _norms(silent: nn.Module, args: Any, kwargs: Any, x: Tensor) -> tuple[list[str], list[str]]:
    """Norms whose input moves with the block's; norms whose input does not, but that are added."""
    given: list[dict[str, Tensor]] = []
    parts: dict[str, nn.Module] = {}

    def look(name: str, m: nn.Module, args: Any, _k: Any, _out: Any) -> None:
        if name and args and isinstance(args[0], Tensor) and args[0].shape == x.shape:
            if name not in parts and could_be(m) and judge(name, m, args[0]) is not False:
                parts[name] = m
            given[-1][name] = args[0].clone()

    outs = []
    for new in (x, another(x)):
        given.append({})
        run = partial(call_block, silent, args, kwargs, x, new)
        each_part(silent, lambda run=run: outs.append(run()), look)  # type: ignore[misc]
    base = outs[0]
    if base is None or outs[1] is None:
        return [], []
    both = [n for n in parts if n in given[0] and n in given[1]]
    readers = [n for n in both if distance(given[0][n], given[1][n]) > 1e-9]
    added = []
    for n in both:
        if n not in readers and _reaches(silent, n, args, kwargs, x, base):
            added.append(n)
    return readers, added


def _reaches(silent: nn.Module, part: str, args: Any, kwargs: Any, x: Tensor, base: Tensor) -> bool:
    """Whether what a part of a silent block gives is in the block's output."""
    bump = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype).cos()
    hook = silent.get_submodule(part).register_forward_hook(lambda _m, _a, out: out + bump)
    moved = call_block(silent, args, kwargs, x, x)
    hook.remove()
    return moved is not None and distance(moved, base) > 1e-6


def _alive(block: nn.Module, part: str, args: Any, kwargs: Any, x: Tensor) -> bool:
    """Whether what a part gives is read at all."""
    base = call_block(block, args, kwargs, x, x)
    return base is not None and _reaches(block, part, args, kwargs, x, base)


@torch.no_grad()
def _mixed(
    silent: nn.Module, args: Any, kwargs: Any, x: Tensor, readers: list[str], added: list[str]
) -> tuple[str, str, str] | None:
    """(a norm before a sub-layer, one after a sub-layer, a linear map that reads the stream as it
    is), if a block has all three. One that norms its stream once more at its end (Conformer) has a
    norm before each sub-layer: none of its linear maps reads the stream itself."""
    base = call_block(silent, args, kwargs, x, x)
    if base is None:
        return None
    on_stream = [n for n in readers if _reaches(silent, n, args, kwargs, x, base)]
    before = [n for n in readers if n not in on_stream]
    after = on_stream + added
    if not before or not after:
        return None
    raw: list[str] = []

    def look(name: str, m: nn.Module, args: Any, _k: Any, _out: Any) -> None:
        matrices = any(p.ndim > 1 and min(p.shape) > 1 for p in m.parameters(recurse=False))
        given = args[0] if name and matrices and args else None
        if isinstance(given, Tensor) and distance(given, x) < 1e-9 * scale_of(x):
            raw.append(name)

    each_part(silent, lambda: call_block(silent, args, kwargs, x, x), look)
    return (before[0], after[-1], raw[0]) if raw else None


def _grows(ctx: Context, name: str) -> float:
    """How much the model's output moves when the last block of this list gives 4 times as much."""
    path = name.rpartition(".")[0]
    siblings = list(ctx.loud.get_submodule(path).children())
    same = [m for m in siblings if type(m) is type(ctx.loud.get_submodule(name))]

    def louder(_m: Any, _a: Any, out: Any) -> Any:
        return (4 * out[0], *out[1:]) if isinstance(out, tuple) else 4 * out

    base = ctx.run(ctx.one)
    hook = same[-1].register_forward_hook(louder)
    try:
        moved = ctx.run(ctx.one)
    finally:
        hook.remove()
    return distance(moved, base) / scale_of(base)
