"""Ids that mean something: those that the config names, and the padding that a module masks."""

from __future__ import annotations

from typing import Any

from torch import nn

from allformer.auditor.calls import MODELS, Call
from allformer.auditor.infer.visibility import blank_queries, looks_away
from allformer.errors import AuditError

NAMES = (
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
    "mask_token_id", "sep_token_id", "cls_token_id", "unk_token_id",
)  # fmt: skip


def special_ids(plan: Call, config: Any, pad: int | None) -> None:
    """Ids that random content leaves out."""
    found = {getattr(config, n, None) for n in NAMES} | {pad}
    plan.special = frozenset({i for i in found if isinstance(i, int)} | {0, 1})
    known = getattr(config, "pad_token_id", None)
    plan.pad = pad if pad is not None else known if isinstance(known, int) else None


def within_vocabulary(plan: Call, **named: int | None) -> None:
    """An AuditError if an id that the user named is none; the config's is left out then."""
    most = max(plan.x.vocab, plan.source.vocab)
    if not plan.x.ids or not most:
        return
    for name, value in named.items():
        if value is not None and not 0 <= value < most:
            raise AuditError(
                f"{name}={value} is no id: the vocabulary has {most} (0 … {most - 1}); give "
                f"another, or vocab= if it is larger"
            )
    plan.pad = plan.pad if plan.pad is not None and 0 <= plan.pad < most else None


def pad_inside(plan: Call, module: nn.Module, twin: Any, pad: int | None) -> None:
    """An id that the module masks by itself: no query looks at it."""
    if not plan.x.ids or plan.kind not in MODELS:
        return
    rows = [m.padding_idx for m in module.modules() if isinstance(m, nn.Embedding)]
    known = next((r for r in rows if r is not None), None)
    if plan.pad is None and known is not None:
        plan.pad = known
    if (plan.source.keeps if plan.has_source else plan.x.keeps) or plan.user is not None:
        return
    last = (plan.source.vocab or plan.x.vocab) - 1
    for candidate in dict.fromkeys([pad, known, plan.pad, 0, 1, 2, last]):
        if candidate is not None and 0 <= candidate <= last and looks_away(plan, twin, candidate):
            plan.pad, plan.pad_inside = candidate, True
            plan.special = plan.special | {candidate}
            plan.notes.append(f"the module masks id {candidate} by itself: it is the padding")
            return
    for candidate in dict.fromkeys([pad, known, plan.pad, 0, 1, 2, last]):
        if candidate is None or not 0 <= candidate <= last or plan.kind == "decoder":
            continue
        if blank_queries(plan, twin, candidate):
            plan.pad, plan.pad_inside = candidate, True
            plan.special = plan.special | {candidate}
            plan.notes.append(f"id {candidate} blanks the queries where it stands: the padding")
            return
