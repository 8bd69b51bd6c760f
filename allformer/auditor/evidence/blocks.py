"""Blocks by themselves: found in a model, captured with their inputs, silenced, called again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.context import Context
from allformer.auditor.probe import duplicate, each_part, lies_in
from allformer.auditor.report import Finding


def lists(module: nn.Module) -> Iterator[tuple[str, list[nn.Module]]]:
    """Containers of several modules that have parameters."""
    for name, m in module.named_modules():
        if isinstance(m, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            inside = list(m.values()) if isinstance(m, nn.ModuleDict) else list(m)
            with_weights = [c for c in inside if any(True for _ in c.parameters())]
            if len(with_weights) > 1:
                yield name, with_weights


Captured = tuple[str, nn.Module, tuple[Any, ...], dict[str, Any], Tensor]


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
        f"with silent sub-layers {type(block).__name__} normalises its input (mean square "
        f"{float(silent.pow(2).mean()):.3f}), but its own output is not normalised (mean square "
        f"{float(out.pow(2).mean()):.3g}): what is added to the sub-layer is norm(x), not x",
        name,
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
