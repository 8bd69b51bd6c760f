# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The value that a mask has: does it hold when scores grow, in fp16, and in rows that see nothing?"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.looks import allowed, square, times
from allformer.auditor.evidence.mask_numbers import finite_value
from allformer.auditor.probe import brief, distance, duplicate, part_outputs, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

LARGE = 1e5  # Q and K some hundred times larger


def _grow(site: Site) -> Any:
    """Multiply the product Q·Kᵀ so that scores reach `LARGE`, leaving the mask as it is."""
    look = allowed(site)
    inside = site.masked_in[:, look] if look.any() else site.masked_in
    factor = LARGE / max(1e-6, float(inside.abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return times(site, factor)


@check("mask.finite", kinds=PARTS)
def finite(ctx: Context) -> Iterator[Finding]:
    """With scores of 1e5, what is hidden must still not be seen."""
    cases = list(_hidden(ctx))
    if not cases:
        raise NotApplicable("nothing is hidden by a mask")
    for what, batch, changed, rows in cases:
        seen, plain = ctx.watch(batch)
        if plain.ndim != 3:
            rows = slice(None)
        if ctx.moved(ctx.run(changed)[:, rows], plain[:, rows], plain):
            continue  # seen already with small scores: another check says so
        inject = {s.op: _grow(s) for s in seen.sites}
        if not inject:
            raise NotApplicable("no attention was seen in its operators")
        base, moved = ctx.inject(batch, inject), ctx.inject(changed, inject)
        gap = distance(moved[:, rows], base[:, rows])
        if gap != float("inf") and gap > 1e-6 * scale_of(base):
            site, value = _value(ctx, seen.sites)
            yield Finding(
                "mask.finite",
                f"with scores of {LARGE:.0e}, {what} moves the output by {gap:.3g}; with small "
                f"scores it does not: hidden scores are about {value:.4g}",
                site,
            )
            return


def _hidden(ctx: Context) -> Iterator[tuple[str, Batch, Batch, slice | Tensor]]:
    """(what is changed, batch, batch with other hidden content, positions that must not move)."""
    batch = ctx.one
    n = batch.x.shape[1]
    other = ctx.call.other(batch.x)
    try:
        causal = not bool(ctx.pattern.triu(1).any()) and bool(ctx.pattern.tril(-1).any())
    except NotApplicable:
        causal = False
    if causal:
        for cut in (n // 3, n // 2, n - 2):
            x = batch.x.clone()
            x[:, cut:] = other[:, cut:]
            yield f"changing the tokens from {cut} on", batch, replace(batch, x=x), slice(0, cut)
    padded = ctx.with_hole("x") if ctx.call.x.keeps else None
    if padded is not None:
        hidden, keep = padded
        where = ~keep[..., None] if batch.x.is_floating_point() else ~keep
        changed = replace(hidden, x=torch.where(where, other, batch.x))
        yield "changing the padding", hidden, changed, keep[0]


def _value(ctx: Context, sites: list[Site]) -> tuple[str, float]:
    for site in sites:
        blocked = site.masked_in[site.masked_in < float(site.scores.min()) * 2 - 10]
        if blocked.numel() and bool(torch.isfinite(blocked).all()):
            return site.where, float(blocked.median())
    for site in square(ctx):
        if (value := finite_value(site)) is not None:
            return site.where, value
    return "", float("nan")


@check("mask.blind_rows", kinds=PARTS)
def blind_rows(ctx: Context) -> Iterator[Finding]:
    """Padding on the left of a causal model: its first rows see nothing. All must stay finite."""
    if not ctx.hides:
        raise NotApplicable("it takes no padding mask")
    batch = ctx.call.batch(3)
    keep = everything(batch.x)
    keep[0, :3] = False
    batch = ctx.hidden(batch, keep)
    out, grads = _with_gradient(ctx, batch, keep)
    if ctx.kind != "decoder" and not _meant_for_the_left(ctx):
        # the textbook's formula: worth a note where nobody pads on the left
        if grads or not bool(torch.isfinite(out).all()):
            ctx.notes.append("padding on the left leaves rows that see nothing: NaN (-inf scores)")
        _all_padding(ctx, batch, keep)
        return
    if (grads or not bool(torch.isfinite(out).all())) and _only_here(ctx, batch, keep):
        return
    if not bool(torch.isfinite(out).all()):
        bad = int((~torch.isfinite(out)).any(-1).sum())
        yield Finding(
            "mask.blind_rows",
            f"3 tokens of padding on the left of row 0 make the outputs of {bad} real positions "
            f"NaN or infinite",
            _nan_at(ctx, batch),
        )
        return
    if grads:
        yield Finding(
            "mask.blind_rows",
            f"3 tokens of padding on the left of row 0 give a finite output, but NaN gradients in "
            f"{len(grads)} parameters",
            grads[0],
        )
        return
    _all_padding(ctx, batch, keep)


def _meant_for_the_left(ctx: Context) -> bool:
    """Whether positions count real tokens only: a gap of padding inside changes no real output."""
    if ctx.kind != "seq2seq" or not ctx.call.x.ids:
        return False
    batch = ctx.call.batch(1, max(6, ctx.call.length - 2))
    keep = torch.ones(batch.x.shape, dtype=torch.bool)
    base = ctx.run(replace(batch, keep=keep))
    gap = torch.zeros(1, 2, dtype=torch.long)
    x = torch.cat([batch.x[:, :3], ctx.call.other(gap), batch.x[:, 3:]], 1)
    keep = torch.cat([keep[:, :3], gap.bool(), keep[:, 3:]], 1)
    out = ctx.run(replace(batch, x=x, keep=keep))
    return base.ndim == 3 and not ctx.moved(out[keep], base[0], base)


def _only_here(ctx: Context, batch: Batch, keep: Tensor) -> bool:
    """Whether its own dtype is finite: fp64's lowest number is −inf for a softmax in fp32."""
    twin = duplicate(ctx.module).eval()
    dtype = next((p.dtype for p in twin.parameters() if p.is_floating_point()), ctx.call.dtype)
    if dtype == ctx.call.dtype:
        return False
    own = replace(ctx, loud=twin, call=replace(ctx.call, dtype=dtype))
    out, grads = _with_gradient(own, replace(batch, **_cast(batch, dtype)), keep)
    return bool(torch.isfinite(out).all()) and not grads


def _with_gradient(ctx: Context, batch: Batch, keep: Tensor) -> tuple[Tensor, list[str]]:
    """The outputs at real positions, and the parameters whose gradient is not finite."""
    ctx.loud.zero_grad(set_to_none=True)
    with torch.enable_grad():
        main = ctx.call(ctx.loud, batch).main
        out = main[keep] if main.ndim == 3 else main[keep.any(1)]
        bad: list[str] = []
        if out.requires_grad and bool(torch.isfinite(out).all()):
            out.sin().sum().backward()
            for name, p in ctx.loud.named_parameters():
                if p.grad is not None and not bool(torch.isfinite(p.grad).all()):
                    bad.append(name)
    ctx.loud.zero_grad(set_to_none=True)
    return out.detach(), bad


def _all_padding(ctx: Context, batch: Batch, keep: Tensor) -> None:
    """A row of nothing but padding is worth a note: naive code gives NaN, SDPA zeros."""
    keep = keep.clone()
    keep[1] = False
    try:
        main = ctx.run(ctx.hidden(batch, keep))
        _, grads = _with_gradient(ctx, ctx.hidden(batch, keep), keep)
    except Exception as error:
        ctx.notes.append(f"a row of nothing but padding raises {type(error).__name__}: {error}")
        return
    if not bool(torch.isfinite(main[1]).all()):
        ctx.notes.append(
            "a row of nothing but padding gives NaN in that row (-inf in all its scores)"
        )
    if grads:
        ctx.notes.append(
            f"a row of nothing but padding makes the gradients of {len(grads)} parameters NaN"
        )


def _nan_at(ctx: Context, batch: Batch) -> str:
    outs = part_outputs(ctx.loud, lambda: ctx.run(batch))
    return next((name for name, out in outs if not bool(torch.isfinite(out).all())), "")


@check("mask.fp16", kinds=PARTS)
def half(ctx: Context) -> Iterator[Finding]:
    """The same in fp16: a mask value must fit, nothing may overflow."""
    twin = duplicate(ctx.module).half().eval()
    call = replace(ctx.call, dtype=torch.float16)
    batch = call.batch(2)
    if call.x.keeps:
        keep = everything(batch.x)
        keep[0, -2:] = False
        batch = replace(batch, keep=keep)
    plain = replace(ctx.call, dtype=torch.float32)
    single = duplicate(ctx.module).float().eval()
    try:
        with torch.no_grad():
            reference = plain(single, replace(batch, **_cast(batch, torch.float32))).main
    except Exception as error:
        raise NotApplicable(f"it does not run in fp32 either: {error}") from error
    try:
        with torch.no_grad():
            out = call(twin, batch).main
    except Exception as error:
        text = brief(error, 1000)
        if "overflow" in text or "out of range" in text or "cannot be converted" in text:
            yield Finding("mask.fp16", f"in fp16 it raises {type(error).__name__}: {text[:160]}")
            return
        raise NotApplicable(f"it does not run in fp16 on the CPU: {text[:120]}") from error
    finite, before = torch.isfinite(out), torch.isfinite(reference)
    if not bool(finite.all()) and bool(before.all()) and float(reference.abs().max()) < 1e3:
        yield Finding(
            "mask.fp16",
            f"in fp16 {int((~finite).sum())} of {out.numel()} outputs are NaN or infinite, in fp32 "
            f"none (the largest there is {float(reference.abs().max()):.3g})",
        )


def _cast(batch: Batch, dtype: torch.dtype) -> dict[str, Tensor]:
    out = {}
    for name in ("x", "source"):
        value = getattr(batch, name)
        if value is not None and value.is_floating_point():
            out[name] = value.to(dtype)
    return out
