"""What the output is: all positions or the last, probabilities or logits, (B, T) or (T, B)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from allformer.auditor.calls import Call
from allformer.auditor.infer.attempt import attempt
from allformer.auditor.probe import distance, scale_of


def last_only(plan: Call, twin: Any) -> None:
    """nanoGPT computes all logits only when it gets targets."""
    if not plan.labels_name or plan.labels_needed or not plan.x.ids:
        return
    with torch.no_grad():
        try:
            if not plan(twin, plan.batch(3)).pooled:
                return
            trial = replace(plan, labels_needed=True)
            if not trial(twin, plan.batch(3)).pooled:
                plan.labels_needed = True
                plan.notes.append(
                    f"without {plan.labels_name} only the last position is computed, so they are "
                    f"given"
                )
        except Exception:
            return


def one_number(plan: Call, twin: Any) -> None:
    """(B, T) at two lengths: one number for each position, as a discriminator gives."""
    for length in (plan.length, plan.length - 1):
        out = attempt(plan, twin, plan.batch(3, length))
        if out is None or out.ndim != 2 or out.shape[1] != length:
            return
    plan.scalar = True
    plan.notes.append("the output is one number for each position")


def probabilities(plan: Call, twin: Any) -> None:
    """Outputs that are probabilities saturate: their logarithms are compared."""
    out = attempt(plan, twin, plan.batch(2))
    if out is None or out.shape[-1] < 2 or float(out.min()) < 0:
        return
    plan.as_log = float((out.sum(-1) - 1).abs().max()) < 1e-4


def time_axis(plan: Call, twin: Any) -> None:
    """(T, B) instead of (B, T): when attention *and* positions run along the first axis."""
    if (
        plan.time_first
        or (plan.has_source and not plan.x.ids)
        or plan.kind in ("attention", "block")
    ):
        return
    batch = plan.batch(3, 5)
    base = attempt(plan, twin, batch)
    if base is None or base.ndim != 3 or base.shape[:2] != (3, 5):
        return
    x = batch.x.clone()
    x[0, 0] = plan.other(batch.x)[0, 0]
    moved = attempt(plan, twin, replace(batch, x=x))
    flat = attempt(plan, twin, replace(batch, x=batch.x[:1, :1].expand_as(batch.x).clone()))
    if moved is None or flat is None:
        return
    tol = 1e-6 * scale_of(base)
    across = distance(moved[1:, 0], base[1:, 0]) > tol
    along = distance(moved[0, 1:], base[0, 1:]) > tol
    by_row = distance(flat[1:], flat[:1].expand_as(flat[1:])) > tol
    by_time = distance(flat[:, 1:], flat[:, :1].expand_as(flat[:, 1:])) > tol
    if across and not along and by_row and not by_time:
        plan.time_first = True
        plan.notes.append("attention and positions run along the first axis: the input is (T, B)")
