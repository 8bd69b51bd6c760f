"""Caches of any make: an empty one for an argument, and what one holds."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import Batch, parameters
from allformer.auditor.context import Context, NotApplicable
from allformer.auditor.infer import OFFSETS
from allformer.auditor.outputs import floats, named
from allformer.auditor.own_models import empty_cache, is_own
from allformer.auditor.probe import distance, duplicate, scale_of

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


def beginnings(ctx: Context, twin: Any, holder: str) -> Iterator[Callable[[], Any]]:
    """Ways to begin: nothing, then what the module's own code makes, then plain containers."""
    if not holder:
        yield lambda: None
        return
    if is_own(twin):
        yield lambda: empty_cache(twin)
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


SPLIT = 5
PIECES = 4  # tokens of a piece of a prompt that is read in pieces


LIMIT = 1e-5  # of the outputs' size
STEPS = f"{SPLIT} tokens at once, then one by one"


def cached_outputs(ctx: Context) -> tuple[Tensor, Tensor, str]:
    """(the logits of the last positions, all at once; the same with a cache; how it was read).

    A cache may be begun and fed in several ways: if one of them agrees, that was meant.
    """
    names = parameters(ctx.module)
    holder = holder_of(ctx.module)
    start = next((n for n in OFFSETS if n in names), "")
    if ctx.call.user is not None or not (holder or start):
        raise NotApplicable("it takes no cache")
    if ctx.kind == "seq2seq" and holder and "past" not in holder:
        raise NotApplicable("its cache is not an argument of forward")
    batch = ctx.call.batch(2)
    whole = ctx.run(batch, duplicate(ctx.loud).eval())
    found: Tensor | None = None
    reason: Exception | None = None
    for begin in beginnings(ctx, duplicate(ctx.loud).eval(), holder):
        for how in _manners(begin, holder):
            try:
                pieces = _steps(ctx, batch, begin(), holder, start, **how)
                if begin() is not None:
                    _must_remember(ctx, batch, pieces, begin(), holder, start, how)
            except Exception as error:
                reason = reason or error
                continue
            last = whole[:, -pieces.shape[1] :]
            if last.shape == pieces.shape and distance(pieces, last) <= LIMIT * scale_of(whole):
                also = _left_padded(ctx, batch, begin, holder, start, how)
                also = also or _in_pieces(ctx, batch, whole, begin, holder, start, how)
                return also or (last, pieces, STEPS)
            if found is None or how["prefix"]:  # given all that was read, it gave the new alone
                found = pieces
        if found is not None:
            return whole[:, -found.shape[1] :], found, STEPS
    assert reason is not None
    raise reason


def _manners(begin: Any, holder: str) -> Iterator[dict[str, Any]]:
    """How a cache may be fed: new tokens or all, and what is called on it after each step."""
    yield {"prefix": False, "after": ""}
    if holder:
        yield {"prefix": True, "after": ""}
        for name in movers(begin):
            yield {"prefix": False, "after": name}


def _steps(
    ctx: Context, batch: Batch, state: Any, holder: str, start: str, prefix: bool, after: str,
    cuts: list[tuple[int, int]] | None = None,
) -> Tensor:  # fmt: skip
    """The new logits of each step; with `prefix` all tokens up to the new ones are given."""
    names, twin = parameters(ctx.module), duplicate(ctx.loud).eval()
    n = batch.x.shape[1]
    out: list[Tensor] = []
    for a, b in cuts or [(0, SPLIT), *((t, t + 1) for t in range(SPLIT, n))]:
        x = batch.x[:, 0 if prefix else a : b]
        arguments = ctx.call.arguments(Batch(x, source=batch.source))
        for slot in ctx.call.slots:
            if slot.causal:
                raise NotApplicable("its causal mask is given from outside")
            if slot.side == "x":
                arguments.pop(slot.name, None)
            if slot.side == "x" and batch.keep is not None:  # of all that was read
                keep = batch.keep[:, :b]
                arguments[slot.name] = slot.encoding(keep, b, False, ctx.call.dtype)
        if "use_cache" in names:
            arguments["use_cache"] = True
        if holder:
            arguments[holder] = state
        if start:
            arguments[start] = a
        before = mark(state)
        with torch.no_grad(), ctx.call.manner():
            raw = twin(**arguments)
        main = _logits(raw, batch.x.shape[0], b - a)
        if main is None:
            raise NotApplicable("with a cache the output has another form")
        out.append(main)
        if holder and mark(state) == before:  # not changed in place
            state = _next_state(raw, holder)
            if state is None:
                raise NotApplicable("it returns no cache to go on with")
        if after:
            getattr(state, after)()
    return torch.cat(out, 1)


def _left_padded(
    ctx: Context, batch: Batch, begin: Any, holder: str, start: str, how: dict[str, Any]
) -> tuple[Tensor, Tensor, str] | None:
    """Row 1 begins with padding, which later steps must neither see nor count."""
    if not ctx.call.x.keeps or ctx.call.at_end("x"):
        return None
    call = replace(ctx.call, positions_name="")  # it must count them itself, or not at all
    keep = batch.real("x").clone()
    keep[1, :2] = False
    batch = batch.hiding("x", keep)
    try:
        with torch.no_grad():
            whole = call(duplicate(ctx.loud).eval(), batch).main
        pieces = _steps(ctx, batch, begin(), holder, start, **how)
    except Exception:
        return None  # it takes another mask with a cache
    padding = ~keep[:, -pieces.shape[1] :, None]
    whole = whole[:, -pieces.shape[1] :].masked_fill(padding, 0.0)
    if distance(pieces.masked_fill(padding, 0.0), whole) <= LIMIT * scale_of(whole):
        return None
    return whole, pieces.masked_fill(padding, 0.0), f"row 1 padded on the left: {STEPS}"


def _in_pieces(
    ctx: Context, batch: Batch, whole: Tensor, begin: Any, holder: str, start: str, how: Any
) -> tuple[Tensor, Tensor, str] | None:
    """A prompt read in pieces, each of several tokens behind a cache that holds some already.

    A module may be made for one new token at a time: then the tokens of a piece see each other as
    they like, and nothing is said but that.
    """
    n = batch.x.shape[1]
    cuts = [(0, SPLIT), *((a, min(a + PIECES, n)) for a in range(SPLIT, n, PIECES))]
    if how["prefix"] or n < SPLIT + PIECES:
        return None
    last = batch.x.clone()
    last[:, SPLIT + PIECES - 1] = ctx.call.other(last)[:, SPLIT + PIECES - 1]
    batches = batch, replace(batch, x=last)
    try:
        pieces, other = (_steps(ctx, b, begin(), holder, start, **how, cuts=cuts) for b in batches)
    except Exception:
        return None  # it says itself that it takes one at a time
    if distance(pieces, whole) <= LIMIT * scale_of(whole):
        return None
    before = slice(0, SPLIT + PIECES - 1)
    if ctx.moved(other[:, before], pieces[:, before], whole):
        ctx.notes.append(
            "behind a cache the tokens of one call see each other, later ones too: it takes one "
            "token at a time"
        )
        return None
    return whole, pieces, f"{SPLIT} tokens at once, then {PIECES} in one call"


def _must_remember(
    ctx: Context, batch: Batch, pieces: Tensor, state: Any, holder: str, start: str, how: Any
) -> None:
    """What we put in the cache's place is one only if later steps depend on earlier tokens."""
    x = batch.x.clone()
    x[:, :SPLIT] = ctx.call.other(x)[:, :SPLIT]
    moved = _steps(ctx, replace(batch, x=x), state, holder, start, **how)
    if not ctx.moved(moved[:, -1], pieces[:, -1], pieces):
        raise NotApplicable("no cache could be made that it remembers by")


def _logits(raw: Any, rows: int, length: int) -> Tensor | None:
    for t in [named(raw, "logits", "last_hidden_state"), *floats(raw)]:
        if t is not None and t.ndim == 3 and tuple(t.shape[:2]) == (rows, length):
            return t
    return None


def _next_state(raw: Any, holder: str) -> Any:
    """The cache among what was returned."""
    if isinstance(raw, tuple | list) and not hasattr(raw, holder):
        rest = [r for r in raw[1:] if not (isinstance(r, Tensor) and r.ndim == 0) and tensors(r)]
        return rest[-1] if rest else None
    inside = raw if isinstance(raw, dict) else getattr(raw, "__dict__", {})
    names = [holder, *(n for n in inside if "past" in n or "cache" in n)]
    values = (inside.get(n) if n in inside else getattr(raw, n, None) for n in names)
    return next((v for v in values if tensors(v)), None)
