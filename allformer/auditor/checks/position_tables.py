"""Tables of positions: the formula's frequencies, and registered so that they move with the model."""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.evidence.positions import plain_tensors
from allformer.auditor.evidence.sinusoid import judge
from allformer.auditor.probe import brief, duplicate
from allformer.auditor.report import Finding


def added_tables(ctx: Context) -> list[Tensor]:
    """What was added to the embedded tokens and depends on the position alone (T, D)."""
    first = ctx.seen.sites[0].op if ctx.seen.sites else ctx.seen.count
    n = ctx.positions()
    lengths = {n} | ({ctx.one.source.shape[1]} if ctx.one.source is not None else set())
    out = []
    for table in ctx.seen.tables:
        before = table.op < first or ctx.call.has_source
        value = table.value
        if table.trained or not before or not value.is_floating_point():
            continue
        try:
            value = value.expand(table.out_shape)
        except RuntimeError:
            continue
        flat = value.reshape(-1, *value.shape[-2:])[0] if value.shape[-2] > 1 else value.squeeze(-2)
        if flat.ndim == 2 and flat.shape[0] in lengths and flat.shape[1] > 3:
            out.append(flat)
    return out


@check("positions.frequencies")
def frequencies(ctx: Context) -> Iterator[Finding]:
    """Sines and cosines that are added have the frequencies 10000^(−2i/d), in pairs."""
    long = _long_tables(ctx)
    tables = added_tables(ctx)
    if not tables:
        raise NotApplicable("no fixed table of positions is added")
    known = False
    for table in tables:
        whole = next((t for t in long if _begins(t, table)), table)
        verdict = judge(whole, any_base="other-base" in ctx.profile)
        if verdict is None:
            continue
        known = True
        if verdict.note:
            ctx.notes.append(verdict.note)
        if verdict.wrong:
            yield Finding("positions.frequencies", verdict.wrong)
            return
    if not known:
        raise NotApplicable("the table that is added is not sinusoidal")


def _long_tables(ctx: Context) -> list[Tensor]:
    """Stored tables: longer than what one run shows, so slow waves can be measured."""
    out = []
    for m in ctx.loud.modules():
        for value in (*m._buffers.values(), *m._parameters.values(), *vars(m).values()):
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2:
                flat = value.detach().squeeze()
                if flat.ndim == 2:
                    out.append(flat[:2048].double())
    return out


def _begins(long: Tensor, short: Tensor) -> bool:
    for shift in (0, 1, 2):
        part = long[shift : shift + short.shape[0]]
        if part.shape == short.shape and torch.allclose(part.double(), short.double(), atol=1e-6):
            return True
    return False


@check("positions.buffer", kinds=(*PARTS, "positions"))
def buffer(ctx: Context) -> Iterator[Finding]:
    """Tensors that are used but do not follow `.to()`: run on the meta device and in bf16."""
    loose = plain_tensors(ctx.module)
    if not loose:
        return
    twin = duplicate(ctx.module).eval()
    for name, _, _, value in plain_tensors(twin):
        problem = _device_problem(ctx, name) or _dtype_problem(ctx)
        if problem:
            kind = str(value.dtype).removeprefix("torch.")
            yield Finding(
                "positions.buffer",
                f"{name} {tuple(value.shape)} is a plain {kind} tensor: {problem}",
                name,
            )
            return


def _device_problem(ctx: Context, name: str) -> str:
    meta = duplicate(ctx.module).eval().to("meta")
    call = ctx.call
    batch = call.batch(2)
    moved: dict[str, Any] = {}
    for key in ("x", "source"):
        value = getattr(batch, key)
        if value is not None:
            moved[key] = (value.float() if value.is_floating_point() else value).to("meta")
    try:
        with torch.no_grad(), torch.device("meta"):
            arguments = replace(call, dtype=torch.float32).arguments(replace(batch, **moved))
            meta(**arguments)
    except Exception as error:
        text = brief(error, 1000)
        if "device" in text and "meta" in text and "cpu" in text:
            return f"after .to(device) it stays behind ({text[:110]})"
    return ""


def _dtype_problem(ctx: Context) -> str:
    twin = duplicate(ctx.module).eval().to(torch.bfloat16)
    call = replace(ctx.call, dtype=torch.bfloat16)
    try:
        with torch.no_grad():
            call(twin, call.batch(2))
    except Exception as error:
        text = brief(error, 1000)
        if "dtype" in text or "scalar type" in text:
            return f"after .to(bfloat16) it stays behind ({text[:110]})"
    return ""
