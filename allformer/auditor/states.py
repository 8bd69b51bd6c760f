"""Caches of any make: an empty one for an argument, and what one holds."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import parameters
from allformer.auditor.context import Context
from allformer.auditor.infer import OFFSETS

BEGINS = ("init", "make", "new", "create", "empty", "build", "allocate", "get")


def holder_of(module: nn.Module) -> str:
    """The argument of forward that takes a cache, by its name; "" if none does."""
    for name in parameters(module):
        words = name.lower().split("_")
        if name in OFFSETS or "hidden" in words or "use" in words or "cached" in words:
            continue
        if "past" in name or "cache" in name or "state" in words or words[-1:] == ["kv"]:
            return name
    return ""


def fresh(ctx: Context, twin: Any, holder: str) -> Iterator[Callable[[], Any]]:
    """Ways to begin: nothing, then what the module's own code makes, then plain containers."""
    if not holder:
        yield lambda: None
        return
    if type(twin).__module__.startswith("allformer."):
        yield twin.new_cache
        return
    yield lambda: None
    for make in [*_methods(twin), *_classes(twin, holder)]:
        if (given := _fill(ctx, make)) is not None:
            yield lambda make=make, given=given: make(**given)  # type: ignore[misc]
    yield lambda: {}
    layers = len(ctx.seen.sites)
    yield lambda: [None] * layers
    yield lambda: [{} for _ in range(layers)]


def _methods(twin: Any) -> list[Any]:
    """`model.init_cache(...)`."""
    names = [n for n in dir(type(twin)) if "cache" in n and n.startswith(BEGINS)]
    return [m for m in (getattr(twin, n) for n in names) if callable(m)]


def _classes(twin: nn.Module, holder: str) -> list[type]:
    """The class that the argument is annotated with, and those beside the module's code."""
    found: list[Any] = []
    try:
        hint = typing.get_type_hints(type(twin).forward).get(holder)
        found += [hint, *typing.get_args(hint)]
    except Exception:
        pass
    for name in dict.fromkeys(type(m).__module__ for m in twin.modules()):
        if not name.startswith("torch."):
            space = vars(sys.modules.get(name, object))
            found += [value for key, value in space.items() if "cache" in key.lower()]
    mine = [c for c in found if isinstance(c, type) and c.__module__ not in ("builtins", "types")]
    return [c for c in dict.fromkeys(mine) if c not in (Tensor, type(twin))]


def _fill(ctx: Context, make: Any) -> dict[str, Any] | None:
    """Arguments for all that must be given, by their names; None if one is not known."""
    try:
        needed = [
            p for p in inspect.signature(make).parameters.values()
            if p.default is p.empty and p.kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD")
        ]  # fmt: skip
    except (TypeError, ValueError):
        return None
    site = ctx.seen.sites[0] if ctx.seen.sites else None
    known: dict[tuple[str, ...], Any] = {
        ("layer", "block", "depth"): len(ctx.seen.sites),
        ("config", "cfg", "args"): getattr(ctx.loud, "config", None),
        ("batch", "bsz", "rows"): 2,
        ("len", "length", "seq", "ctx"): ctx.call.length,
        ("head_dim", "d_head", "hd"): None if site is None else site.k.shape[-1],
        ("head", "heads"): None if site is None else site.k.shape[0],
        ("dtype",): ctx.call.dtype,
        ("device",): torch.device("cpu"),
        ("model", "module"): ctx.loud,
    }
    given = {}
    for p in needed:
        value = next((v for words, v in known.items() if any(w in p.name for w in words)), None)
        if p.kind.name == "POSITIONAL_ONLY" or value is None:
            return None
        given[p.name] = value
    return given


def tensors(state: Any, depth: int = 4) -> list[Tensor]:
    """All tensors that a cache holds."""
    if isinstance(state, Tensor):
        return [state]
    if depth == 0 or isinstance(state, str | bytes | int | float | type) or state is None:
        return []
    if isinstance(state, dict):
        inside = list(state.values())
    elif isinstance(state, list | tuple):
        inside = list(state)
    else:
        inside = list(getattr(state, "__dict__", {}).values())
    return [t for value in inside for t in tensors(value, depth - 1)]


def mark(state: Any) -> list[tuple[int, int]]:
    """What changes when a cache is written to in place."""
    return [(id(t), t._version) for t in tensors(state)]


def movers(begin: Callable[[], Any]) -> list[str]:
    """Methods without arguments of a cache of the user's own: its loop may call `cache.step()`."""
    try:
        kind = type(begin())
    except Exception:
        return []
    if kind.__module__.split(".")[0] in ("builtins", "torch", "transformers", "allformer"):
        return []
    methods = {n: m for n, m in vars(kind).items() if inspect.isfunction(m) and n[0] != "_"}
    return [
        n for n, m in methods.items()
        if all(p.default is not p.empty for p in list(inspect.signature(m).parameters.values())[1:])
    ]  # fmt: skip
