"""`infer`: the steps, one after the other; each fills fields of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from allformer.auditor.calls import Call
from allformer.auditor.infer.arguments import roles
from allformer.auditor.infer.first_run import first_run
from allformer.auditor.infer.kind import first_kind, settle_kind
from allformer.auditor.infer.masks import mask_slots
from allformer.auditor.infer.output import last_only, one_number, probabilities, time_axis
from allformer.auditor.infer.special_tokens import pad_inside, special_ids, within_vocabulary
from allformer.auditor.infer.torch_modules import STOCK, stock
from allformer.auditor.infer.user_call import by_user, user_masks
from allformer.auditor.infer.vocab import config_vocab, likely, sharpen, table_sizes


def infer(
    module: nn.Module,
    loud: Callable[[frozenset[int]], nn.Module],
    kind: str | None,
    *,
    vocab: int | None = None,
    source_vocab: int | None = None,
    pad: int | None = None,
    eos: int | None = None,
    width: int | None = None,
    call: Callable[..., Any] | None = None,
) -> tuple[Call, nn.Module]:
    """How `module` is called, and the loud copy with which it was found out."""
    config = getattr(module, "config", None)
    plan = Call(kind or first_kind(module, config))
    special_ids(plan, config, pad)
    tables = table_sizes(module, plan.kind)
    known = vocab or config_vocab(config)
    plan.x.vocab, plan.source.vocab = known or likely(tables), source_vocab or 0
    twin = loud(frozenset([plan.x.vocab] if plan.x.vocab else []))
    plan.dtype = next((p.dtype for p in twin.parameters() if p.is_floating_point()), torch.float64)
    if call is not None:
        by_user(plan, call)
    elif not stock(plan, module):
        roles(plan, module)
    first_run(plan, module, twin, width)
    if plan.square:
        _say(plan, kind)
        return plan, twin
    if plan.x.ids and not known:
        sharpen(plan, twin, tables)
    within_vocabulary(plan, pad=pad, eos=eos)
    one_number(plan, twin)
    probabilities(plan, twin)
    if call is None:
        last_only(plan, twin)
        time_axis(plan, twin)
    if kind is None and type(module) not in STOCK:
        settle_kind(plan, module, twin)
    if call is None:
        mask_slots(plan, module, twin)
    else:
        user_masks(plan, twin)
    pad_inside(plan, module, twin, pad)
    _say(plan, kind)
    return plan, twin


def _say(plan: Call, said: str | None) -> None:
    """What was found, in words."""
    if said is None:
        plan.notes.append(f"kind {plan.kind!r}: inferred; give kind= if it is another")
    plan.notes.insert(0, f"called as {plan.style}")
    what = f"ids below {plan.x.vocab}" if plan.x.ids else f"vectors of {plan.x.width}"
    what = what if plan.x.picture is None else f"patches of {plan.x.width} numbers"
    if plan.has_source:
        there = f"ids below {plan.source.vocab or plan.x.vocab}" if plan.source.ids else "vectors"
        what += f", source: {there}"
    plan.notes.insert(1, f"input: {what}")
    for slot in plan.slots:
        if not slot.causal:
            plan.notes.append(f"{slot.name}: {slot.encoding}, on the {slot.side} side")
    if plan.labels_name:
        plan.notes.append(f"targets are given as {plan.labels_name}")
