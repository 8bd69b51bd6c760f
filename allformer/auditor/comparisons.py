"""Consistency: what must not change the numbers does not, and by how much it does.

    for row in consistency(model, kind="decoder"): print(row)

Each row compares two ways of computing one thing, gives the largest difference relative to the
outputs' size, and the first part of the model where the difference begins.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import Context, NotApplicable
from allformer.auditor.evidence.caches import cached_outputs
from allformer.auditor.probe import (
    DROPOUTS,
    brief,
    distance,
    duplicate,
    guarded,
    part_outputs,
    scale_of,
)
from allformer.auditor.watch import Inject

EXACT = 1e-5  # in fp32, relative to the outputs' size
BF16 = 0.1  # eight bits, several layers


@dataclass
class Row:
    """One comparison."""

    name: str
    state: str  # "same", "differs" or "not applicable"
    difference: float = 0.0  # relative to the outputs' size
    limit: float = EXACT
    begins: str = ""  # the first part whose output differs
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.state == "not applicable":
            return f"{self.name}: not applicable ({self.reason})"
        where = f", begins at {self.begins}" if self.begins else ""
        return f"{self.name}: {self.state}, largest difference {self.difference:.1e}{where}"


Pair = tuple[Tensor, Tensor, float, str]


def consistency(
    module: Any, kind: str | None = None, *, compile: bool = True, progress: Any = None, **how: Any
) -> list[Row]:
    """All comparisons for a module; `how` as for `audit` (vocab, call, pad, …)."""
    from allformer.auditor.run import _context, _is_builder, _known

    kind = _known(kind)
    with guarded(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if _is_builder(module, kind):
            module = module()
        ctx = _context(module, kind, None, frozenset(), how)
        ctx = replace(
            ctx, loud=duplicate(module).float().eval(), call=replace(ctx.call, dtype=torch.float32)
        )
        tests: dict[str, Callable[[Context], Pair]] = {
            "batch = single": _batch_single,
            "cached = uncached": _cached,
            "right padding = none": lambda c: _padding(c, left=False),
            "left padding = none": lambda c: _padding(c, left=True),
            "eager = fast kernel": _kernels,
            "bf16 ≈ fp32": _bf16,
            "train mode without dropout = eval": _train_mode,
            "save → load = same": _save_load,
        }
        if compile:
            tests["compiled = eager"] = _compiled
        rows = []
        for number, (name, test) in enumerate(tests.items()):
            if progress is not None:
                progress(name, number, len(tests))
            rows.append(_row(name, test, ctx))
    return rows


def _row(name: str, test: Callable[[Context], Pair], ctx: Context) -> Row:
    try:
        a, b, limit, begins = test(ctx)
    except NotApplicable as reason:
        return Row(name, "not applicable", reason=str(reason))
    except Exception as error:
        text = brief(error, 160)
        return Row(name, "not applicable", reason=f"{type(error).__name__}: {text}")
    gap = distance(a, b) / scale_of(b)
    same = gap <= limit
    return Row(name, "same" if same else "differs", gap, limit, "" if same else begins)


def _first(
    one: list[tuple[str, Tensor]], two: list[tuple[str, Tensor]], limit: float, pick: Any
) -> str:
    for (name, a), (_, b) in zip(one, two, strict=False):
        a = pick(a)
        if a is not None and a.shape == b.shape and distance(a, b) > limit * scale_of(b):
            return name
    return ""


def _batch_single(ctx: Context) -> Pair:
    batch = ctx.call.batch(3)
    single = Batch(batch.x[:1], source=None if batch.source is None else batch.source[:1])
    many = part_outputs(ctx.loud, lambda: ctx.run(batch))
    few = part_outputs(ctx.loud, lambda: ctx.run(single))
    axis = 1 if ctx.call.time_first else 0
    begins = _first(
        many,
        few,
        EXACT,
        lambda t: t.narrow(axis, 0, 1) if t.ndim > axis and t.shape[axis] == 3 else None,
    )
    return ctx.run(batch)[:1], ctx.run(single), EXACT, begins


def _cached(ctx: Context) -> Pair:
    if ctx.kind == "encoder":
        raise NotApplicable("an encoder needs no cache")
    whole, pieces, _ = cached_outputs(ctx)
    return pieces, whole, EXACT, ""


def _padding(ctx: Context, left: bool) -> Pair:
    from allformer.auditor.evidence.padding import PADS, room, with_padding

    if not ctx.call.x.keeps:
        raise NotApplicable("it takes no padding mask")
    if left and ctx.kind != "decoder":
        raise NotApplicable("left padding is for decoders")
    if left and ctx.call.at_end("x"):
        raise NotApplicable("it is told lengths: padding can only be on the right")
    batch = room(ctx)
    plain = replace(batch, keep=everything(batch.x))
    x, keep = with_padding(ctx, batch.x, left)
    padded = replace(batch, x=x, keep=keep)
    start = PADS if left else 0
    n = batch.x.shape[1]

    def real(t: Tensor) -> Tensor | None:
        return t[:, start : start + n] if t.ndim == 3 and t.shape[1] == n + PADS else None

    wide = part_outputs(ctx.loud, lambda: ctx.run(padded))
    short = part_outputs(ctx.loud, lambda: ctx.run(plain))
    out = ctx.run(padded)
    out = out[:, start : start + n] if out.ndim == 3 else out
    return out, ctx.run(plain), EXACT, _first(wide, short, EXACT, real)


def _kernels(ctx: Context) -> Pair:
    batch = ctx.call.batch(2)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        torch.backends.mha.set_fastpath_enabled(True)
        fast, parts = ctx.run(batch), part_outputs(ctx.loud, lambda: ctx.run(batch))
        torch.backends.mha.set_fastpath_enabled(False)

    def by_formula() -> Tensor:
        with Inject({}):  # the mathematical kernel, operator by operator
            return ctx.run(batch)

    plain = part_outputs(ctx.loud, by_formula)
    return fast, by_formula(), EXACT, _first(parts, plain, EXACT, lambda t: t)


def _bf16(ctx: Context) -> Pair:
    twin = duplicate(ctx.loud).to(torch.bfloat16)
    call = replace(ctx.call, dtype=torch.bfloat16)
    batch = ctx.call.batch(2)
    moved = {k: getattr(batch, k) for k in ("x", "source") if getattr(batch, k) is not None}
    cast = {k: v.bfloat16() if v.is_floating_point() else v for k, v in moved.items()}
    with torch.no_grad():
        low = call(twin, replace(batch, **cast)).main.float()
    return low, ctx.run(batch), BF16, ""


def _compiled(ctx: Context) -> Pair:
    batch = ctx.call.batch(2)
    twin = duplicate(ctx.loud)
    torch._dynamo.reset()
    fast = torch.compile(twin, backend="aot_eager")
    return ctx.run(batch, fast), ctx.run(batch), EXACT, ""  # type: ignore[arg-type]


def _train_mode(ctx: Context) -> Pair:
    twin = duplicate(ctx.loud).train()
    for m in twin.modules():
        if isinstance(m, DROPOUTS):
            m.p = 0.0
        if isinstance(m, nn.MultiheadAttention):
            m.dropout = 0.0
    call = replace(ctx.call, silence=True)
    batch = ctx.call.batch(2)
    with torch.no_grad():
        train = call(twin, batch).main
    begins = _first(
        part_outputs(twin, lambda: call(twin, batch)),
        part_outputs(ctx.loud, lambda: ctx.run(batch)),
        EXACT,
        lambda t: t,
    )
    return train, ctx.run(batch), EXACT, begins


def _save_load(ctx: Context) -> Pair:
    batch = ctx.call.batch(2)
    file = io.BytesIO()
    torch.save(ctx.loud.state_dict(), file)
    file.seek(0)
    twin = duplicate(ctx.loud)
    with torch.no_grad():
        for p in twin.parameters():
            if p.is_floating_point():
                p.add_(1.0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    return ctx.run(batch, twin), ctx.run(batch), EXACT, ""
