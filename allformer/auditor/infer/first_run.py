"""The first call that works: ids or vectors, their size, the length and the masks that must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from allformer.auditor.calls import ORDERED, Call, Slot, parameters
from allformer.auditor.infer.arguments import CROSS_WORDS, is_mask, side
from allformer.auditor.infer.attempt import attempt
from allformer.auditor.infer.images import images, sees_images
from allformer.auditor.infer.torch_modules import STOCK
from allformer.auditor.mask_encoding import Encoding, padding_encodings
from allformer.auditor.probe import distance, scale_of
from allformer.errors import AuditError

LENGTHS = (12, 8, 16, 32, 5)


def first_run(plan: Call, module: nn.Module, twin: Any, width: int | None) -> None:
    """Try until a call works, and keep it; an AuditError says what was tried."""
    if _search(plan, module, twin, width) or _other_layouts(plan, module, twin, width):
        plan.tried.clear()
        return
    if images(plan, module, twin):
        plan.tried.clear()
        return
    if plan.user is None and _square(plan, module, twin, width):
        return
    reasons = "; ".join(plan.tried[:3]) or "nothing could be tried: give vocab= or width="
    how = "audit(module, call=lambda module, ids: module(...)), and kind=, vocab= where known"
    if sees_images(module) and plan.user is None:
        how = (
            "it seems to take images, so audit(module, kind='encoder', width=C·p·p, call=lambda "
            "module, x: module(images)) with images (B, C, H, W) that you make of the patches x "
            "(B, N, C·p·p)"
        )
    raise AuditError(f"the module could not be called ({plan.style}; {reasons}). Say how: {how}")


def _other_layouts(plan: Call, module: nn.Module, twin: Any, width: int | None) -> bool:
    """Two sequences fit only if they come as (T, B), or only if the source is not the longer."""
    if not plan.has_source or plan.user is not None or type(module) in STOCK:
        return False
    plan.time_first = True
    if _search(plan, module, twin, width) and not _positions_by_row(plan, twin):
        plan.notes.append("the two sequences fit only if they come as (T, B)")
        return True
    plan.time_first, plan.slots = False, []
    for longer, said in ((-2, "the source must not be longer than the target"),
                         (0, "the two sequences must be of one length")):  # fmt: skip
        plan.longer = longer
        if _search(plan, module, twin, width):
            plan.notes.append(said)
            return True
    plan.longer = 2
    return False


def _square(plan: Call, module: nn.Module, twin: Any, width: int | None) -> bool:
    """As many rows as positions: what else fits a module that attends along the rows?"""
    before = plan.slots, plan.longer
    plan.square, plan.slots, plan.longer = True, [], 0
    if _search(plan, module, twin, width):
        plan.notes.append("it runs only with as many rows as positions")
        return True
    plan.square, (plan.slots, plan.longer) = False, before
    return False


def _positions_by_row(plan: Call, twin: Any) -> bool:
    """One token repeated differs by row, not by position: it is (B, T), and attends over B."""
    batch = plan.batch(3, 5)
    assert batch.source is not None
    x, source = (t[:1, :1].expand_as(t).clone() for t in batch.inputs)
    out = attempt(plan, twin, replace(batch, x=x, source=source))
    if out is None or out.ndim != 3:
        return False
    tol = 1e-6 * scale_of(out)
    return distance(out, out[:1].expand_as(out)) > tol > distance(out, out[:, :1].expand_as(out))


def _search(plan: Call, module: nn.Module, twin: Any, width: int | None) -> bool:
    """Try ids and vectors, sizes, lengths and the masks that must be; keep what works."""
    vectors_first = plan.kind in ("attention", "block", "feed")
    stock = type(module) in STOCK and not plan.user
    if stock or not plan.x.vocab:
        orders = [False]
    else:
        orders = [False, True] if vectors_first else [True, False]
    needed = _needed_masks(plan, module)
    for ids in orders:
        for size in [0] if ids else [width] if width else widths(module)[:6]:
            plan.x.ids = plan.source.ids = ids
            plan.x.width = plan.source.width = size or 0
            for fill in _fills(needed, plan):
                for length in LENGTHS if ids else LENGTHS[:3]:
                    trial = replace(plan, slots=[*plan.slots, *fill], length=length)
                    rows = length if plan.square else 3
                    if attempt(trial, twin, trial.batch(rows)) is not None:
                        plan.slots, plan.length = trial.slots, length
                        return True
    return False


def widths(module: nn.Module) -> list[int]:
    """Likely sizes of the input's vectors, the likeliest first."""
    found: dict[int, float] = {}
    for m in module.modules():
        if isinstance(m, nn.MultiheadAttention):
            found[m.embed_dim] = found.get(m.embed_dim, 0) + 3
        elif isinstance(m, nn.Linear):
            found[m.in_features] = found.get(m.in_features, 0) + (1 if found else 2)
    for p in module.parameters():
        for n in p.shape:
            if n > 1:
                found[n] = found.get(n, 0) + 0.3
    return sorted(found, key=lambda n: -found[n]) or [24]


def _needed_masks(plan: Call, module: nn.Module) -> list[str]:
    if plan.user is not None or type(module) in STOCK:
        return []
    taken = {*plan.x.names, *plan.source.names, *plan.constants, plan.labels_name}
    return [
        n for n, p in parameters(module).items()
        if p.default is p.empty and p.kind.value < 2 and n not in taken and is_mask(n)
    ]  # fmt: skip


def _fills(needed: list[str], plan: Call) -> list[list[Slot]]:
    """Ways to fill the masks that cannot be left out: all may be seen."""
    if not needed:
        return [[]]
    ways = [[Slot(n, side(plan, n), padding_encodings(n)[0]) for n in needed]]
    for polarity in ("keep", "block", "add", "keep_int"):
        for shape in ("BS", "B11S", "B1TS", "TS", "BTS", "B1S"):
            for cross in (shape, "B11S", "BS"):
                slots = []
                for name in needed:
                    form = cross if side(plan, name) == "source" else shape
                    ordered = plan.kind in ORDERED and "T" in form
                    encoding = Encoding(form, polarity)
                    slots.append(Slot(name, side(plan, name), encoding, causal=ordered))
                ways.append(slots)
        ways.append([_apart(plan, n, polarity) for n in needed])
    return ways


def _apart(plan: Call, name: str, polarity: str) -> Slot:
    """Padding (B, S) and who sees whom (T, T) as arguments of their own, as in nn.Transformer."""
    where = side(plan, name)
    if "pad" in name:
        return Slot(name, where, padding_encodings(name)[0])
    if where == "source" and not any(word in name for word in CROSS_WORDS):
        return Slot(name, where, Encoding("SS", polarity))
    return Slot(name, where, Encoding("TS", polarity), plan.kind in ORDERED and where == "x")
