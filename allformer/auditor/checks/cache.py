"""Step by step with a cache must give what reading everything at once gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, parameters
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.infer import OFFSETS
from allformer.auditor.outputs import floats, named
from allformer.auditor.probe import distance, duplicate, scale_of
from allformer.auditor.report import Finding

SPLIT = 5


def cached_outputs(ctx: Context) -> tuple[Tensor, Tensor]:
    """(the logits of the last positions, all at once; the same, one by one with a cache)."""
    names = parameters(ctx.module)
    holder = next((n for n in names if "past" in n or ("cache" in n and "use" not in n
                   and n != "cache_position")), "")  # fmt: skip
    start = next((n for n in OFFSETS if n in names), "")
    if ctx.call.user is not None or not (holder or start):
        raise NotApplicable("it takes no cache")
    if ctx.kind == "seq2seq" and holder and "past" not in holder:
        raise NotApplicable("its cache is not an argument of forward")
    twin = duplicate(ctx.loud).eval()
    batch = ctx.call.batch(2)
    with torch.no_grad():
        whole = ctx.call(twin, batch).main
        pieces = _steps(ctx, duplicate(ctx.loud).eval(), batch, holder, start)
    return whole[:, -pieces.shape[1] :], pieces


def _steps(ctx: Context, twin: Any, batch: Batch, holder: str, start: str) -> Tensor:
    names = parameters(ctx.module)
    n = batch.x.shape[1]
    out: list[Tensor] = []
    state = _fresh(ctx, twin, holder)
    cuts = [(0, SPLIT), *((t, t + 1) for t in range(SPLIT, n))]
    for a, b in cuts:
        arguments = ctx.call.arguments(Batch(batch.x[:, a:b], source=batch.source))
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
        with ctx.call.manner():
            raw = twin(**arguments)
        length = b - a
        main = _logits(raw, batch.x.shape[0], length)
        if main is None:
            raise NotApplicable("with a cache the output has another form")
        out.append(main)
        if holder:
            state = _next_state(raw, holder, state)
            if state is None:
                raise NotApplicable("it returns no cache to go on with")
    return torch.cat(out, 1)


def _fresh(ctx: Context, twin: Any, holder: str) -> Any:
    """An empty cache: ours is made from the number of layers; others begin with None."""
    if not holder:
        return None
    annotation = str(parameters(ctx.module)[holder].annotation)
    if type(twin).__module__.startswith("allformer.") and "Cache" in annotation:
        from allformer.core.cache import Cache

        return Cache(len(twin.config.decoder.blocks))
    return None


def _logits(raw: Any, rows: int, length: int) -> Tensor | None:
    for t in [named(raw, "logits", "last_hidden_state"), *floats(raw)]:
        if t is not None and t.ndim == 3 and tuple(t.shape[:2]) == (rows, length):
            return t
    return None


def _next_state(raw: Any, holder: str, state: Any) -> Any:
    if isinstance(raw, dict) or hasattr(raw, holder):
        value = raw.get(holder) if isinstance(raw, dict) else getattr(raw, holder)
        if value is not None:
            return value
    if isinstance(raw, tuple | list):
        rest = [r for r in raw[1:] if r is not None and not (isinstance(r, Tensor) and r.ndim == 0)]
        if rest:
            return rest[-1]
    return state  # changed in place


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
    if worst > 1e-5 * scale_of(whole):
        first = next(t for t, g in enumerate(gaps) if g > 1e-5 * scale_of(whole))
        yield Finding(
            "cache.mismatch",
            "",
            f"{SPLIT} tokens at once, then one by one: logits differ by up to {worst:.3g} (size "
            f"{scale_of(whole):.3g}), first at position {first}",
        )
