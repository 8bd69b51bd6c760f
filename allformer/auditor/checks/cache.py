"""Step by step with a cache must give what reading everything at once gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, parameters
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.infer import OFFSETS
from allformer.auditor.outputs import floats, named
from allformer.auditor.probe import distance, duplicate, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.states import fresh, holder_of, mark, movers, tensors

SPLIT = 5
LIMIT = 1e-5  # of the outputs' size


def cached_outputs(ctx: Context) -> tuple[Tensor, Tensor]:
    """(the logits of the last positions, all at once; the same, one by one with a cache).

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
    for begin in fresh(ctx, duplicate(ctx.loud).eval(), holder):
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
                return last, pieces
            if found is None or how["prefix"]:  # given all that was read, it gave the new alone
                found = pieces
        if found is not None:
            return whole[:, -found.shape[1] :], found
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
    ctx: Context, batch: Batch, state: Any, holder: str, start: str, prefix: bool, after: str
) -> Tensor:
    """The new logits of each step; with `prefix` all tokens up to the new ones are given."""
    names, twin = parameters(ctx.module), duplicate(ctx.loud).eval()
    n = batch.x.shape[1]
    out: list[Tensor] = []
    cuts = [(0, SPLIT), *((t, t + 1) for t in range(SPLIT, n))]
    for a, b in cuts:
        x = batch.x[:, 0 if prefix else a : b]
        arguments = ctx.call.arguments(Batch(x, source=batch.source))
        for slot in ctx.call.slots:
            if slot.causal:
                raise NotApplicable("its causal mask is given from outside")
            if slot.side == "x":
                arguments.pop(slot.name, None)
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


@check("cache.mismatch", kinds=("decoder", "seq2seq"))
def cache(ctx: Context) -> Iterator[Finding]:
    """Cached = uncached."""
    try:
        whole, pieces = cached_outputs(ctx)
    except NotApplicable:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:140]
        raise NotApplicable(
            f"stepping with a cache failed: {type(error).__name__}: {text}"
        ) from error
    if whole.shape != pieces.shape:
        raise NotApplicable("cached and uncached outputs have different shapes")
    gaps = [distance(pieces[:, t], whole[:, t]) for t in range(whole.shape[1])]
    worst = max(gaps)
    if worst > LIMIT * scale_of(whole):
        first = next(t for t, g in enumerate(gaps) if g > LIMIT * scale_of(whole))
        yield Finding(
            "cache.mismatch",
            "",
            f"{SPLIT} tokens at once, then one by one: logits differ by up to {worst:.3g} (size "
            f"{scale_of(whole):.3g}), first at position {first}",
        )
