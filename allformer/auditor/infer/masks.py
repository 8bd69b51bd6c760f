"""Which mask arguments there are, and how they want to be written."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import nn

from allformer.auditor.calls import MODELS, ORDERED, Batch, Call, Slot, everything, parameters
from allformer.auditor.infer.arguments import is_mask, side
from allformer.auditor.infer.attempt import attempt, watched
from allformer.auditor.infer.torch_modules import STOCK
from allformer.auditor.infer.visibility import order, padding_influence, sees
from allformer.auditor.mask_encoding import causal_encodings, padding_encodings

OTHERS = ("head_mask", "cross_attn_head", "labels", "global")  # masks of something else


def mask_slots(plan: Call, module: nn.Module, twin: Any) -> None:
    """Fill the slots of the masks, and say for which side padding can be given."""
    if type(module) in STOCK:
        plan.x.keeps = True
        plan.source.keeps = plan.has_source
        return
    if plan.x.picture is not None:
        return  # every patch is real; a mask of patches says which are to be guessed
    for slot in [s for s in plan.slots if s.encoding.shape == "SS"]:
        _over_itself(plan, twin, slot)
    taken = {*plan.x.names, *plan.source.names, *plan.constants}
    given = parameters(module).items()
    names = [n for n, p in given if is_mask(n) and n not in taken and not _is_switch(p)]
    names = [n for n in names if not any(word in n for word in OTHERS)]
    mine = [n for n in names if side(plan, n) == "x"]
    theirs = [n for n in names if side(plan, n) == "source"]
    if plan.kind in ORDERED:
        mine = _causal_slot(plan, twin, mine)
    plan.x.keeps = _padding_slots(plan, twin, mine, "x") or any(
        s.causal and s.encoding.per_row for s in plan.slots
    )
    plan.source.keeps = _padding_slots(plan, twin, theirs, "source")
    spare = len(mine) == 1 and not plan.x.keeps and plan.kind in MODELS
    if spare and order(plan, twin) != "wrong":  # then it may be for who sees whom
        plan.lone_mask = _lone(plan, twin, mine[0])


def _is_switch(argument: inspect.Parameter) -> bool:
    """`has_mask=True` says whether there is one, and is none itself."""
    return isinstance(argument.default, bool) or argument.annotation in (bool, "bool")


def _with(plan: Call, slots: list[Slot]) -> Call:
    """The call with these slots instead of those of the same names."""
    names = [s.name for s in slots]
    return replace(plan, slots=[*(s for s in plan.slots if s.name not in names), *slots])


def _over_itself(plan: Call, twin: Any, slot: Slot) -> None:
    """A mask of the source over itself hides nothing: the polarity with which all rows look."""
    for polarity in ("block", "add", "keep", "keep_int"):
        trial = _with(plan, [replace(slot, encoding=replace(slot.encoding, polarity=polarity))])
        batch = trial.batch(1)
        keys = 0 if batch.source is None else batch.source.shape[1]
        own = [
            s.weights.nan_to_num(0.0) for s in watched(trial, twin, batch).sites
            if s.weights.shape[1:] == (keys, keys)
        ]  # fmt: skip
        if own and float(own[0].std(-1).min()) > 1e-9:  # neither blank nor even
            plan.slots = trial.slots
            return


def _causal_slot(plan: Call, twin: Any, names: list[str]) -> list[str]:
    """If the module is not causal by itself, the mask that makes it so; the names left over."""
    given = [s.name for s in plan.slots if s.name in names]
    if not given and (sees(plan, twin) is None or order(plan, twin)):
        return names
    for name in sorted(names, key=lambda n: "pad" in n):
        for encoding in causal_encodings(name):
            trial = _with(plan, [Slot(name, "x", encoding, causal=True)])
            if sees(trial, twin) == (False, True):
                plan.slots = trial.slots
                plan.notes.append(f"causal by the mask that is given: {name} {encoding}")
                return [n for n in names if n != name]
    return names


def _lone(plan: Call, twin: Any, name: str) -> str:
    """The name, if a mask (rows, keys) hides padding in one row and fits no other number of rows
    than that of the heads: it is broadcast along the wrong axis."""
    sites = watched(plan, twin, plan.batch(1)).sites
    heads = sites[0].q.shape[0] if sites else 0
    if heads < 2 or heads == plan.length:
        return ""
    for encoding in padding_encodings(name):
        if encoding.shape != "BS":
            continue
        trial = _with(plan, [Slot(name, "x", encoding)])
        score = padding_influence(trial, twin, "x", rows=1)
        if score is not None and score < 1e-7:
            fits = attempt(trial, twin, _all_kept(trial, heads)) is not None
            return name if fits and attempt(trial, twin, _all_kept(trial, 3)) is None else ""
    return ""


def _all_kept(plan: Call, rows: int) -> Batch:
    batch = plan.batch(rows)
    return replace(batch, keep=everything(batch.x))


def _padding_slots(plan: Call, twin: Any, names: list[str], side: str) -> bool:
    """Find the encoding in which padding matters least; True if there is such an argument."""
    if not names:
        return False
    padding = [n for n in names if "pad" in n]
    groups = [names] if len(names) == 1 else [names, padding, *([n] for n in names)]
    own = order(plan, twin) if side == "x" and plan.kind in ORDERED else ""
    best = _least(plan, twin, [g for g in groups if g], side, own)
    if best is None and own == "right":
        best = _least(plan, twin, [g for g in groups if g], side, "")
    if best is None:
        return False
    plan.slots = best
    return True


def _least(
    plan: Call, twin: Any, groups: list[list[str]], side: str, own: str
) -> list[Slot] | None:
    """The slots with which padding matters least.

    `own`: the order that the module keeps by itself, and a mask that says who sees whom may stand
    in the place of that: then it must say so too. One that is named after padding does not.
    """
    best: tuple[float, list[Slot]] | None = None
    for group in groups:
        for encoding in padding_encodings(group[0]):
            causal = bool(encoding.full and plan.kind in ORDERED and side == "x")
            trial = _with(plan, [Slot(n, side, encoding, causal) for n in group])
            score = padding_influence(trial, twin, side)
            if score is None:
                continue
            if own and "pad" not in group[0] and order(trial, twin) != own:
                continue
            if best is None or score < best[0] * 0.1:
                best = score, trial.slots
            if score < 1e-7:
                break
        if best is not None and best[0] < 1e-7:
            break
    return None if best is None else best[1]
