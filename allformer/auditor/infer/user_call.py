"""The user's own function: how many arguments it takes, and what it makes of a padding mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from allformer.auditor.calls import Call, everything
from allformer.auditor.infer.attempt import attempt
from allformer.auditor.probe import distance, scale_of


def by_user(plan: Call, call: Callable[..., Any]) -> None:
    """The user's function says how: only how many arguments it takes is asked."""
    takes = inspect.signature(call).parameters.values()
    needed = [p for p in takes if p.kind.value < 2 and p.default is p.empty]
    plan.user, plan.user_arity = call, max(1, len(needed))
    if any(p.kind.name == "VAR_POSITIONAL" for p in takes):
        plan.user_arity = 3 if plan.kind == "seq2seq" else 2
    _say(plan)


def user_masks(plan: Call, twin: Any) -> None:
    """Whether masks are given to it, and whether it counts them: `keep.sum(1)`."""
    _optional(plan, twin)
    plan.x.keeps = plan.user_arity > (4 if plan.kind == "seq2seq" else 2)
    plan.source.keeps = plan.kind == "seq2seq" and plan.user_arity > 3
    if plan.x.keeps and plan.kind == "seq2seq" and _ignores(plan, twin):
        plan.x.keeps = False
        plan.notes.append("keep changes nothing: targets padded on the right need none")
    for name in ("x", "source"):
        side = plan.side(name)
        side.counted = side.keeps and _counts(plan, twin, name)
    _say(plan)


def _say(plan: Call) -> None:
    plan.style = f"your call function, with {plan.user_arity} arguments"


def _optional(plan: Call, twin: Any) -> None:
    """`call(module, ids, keep=None)`: keep is given if hiding nothing changes nothing."""
    assert plan.user is not None
    places = [p for p in inspect.signature(plan.user).parameters.values() if p.kind.value < 2]
    most = min(len(places), 5 if plan.kind == "seq2seq" else 3)
    for arity in range(most, max(plan.user_arity, 1), -1):
        if any(p.default is not None for p in places[plan.user_arity : arity]):
            continue
        base = attempt(plan, twin, plan.batch(2))
        out = attempt(replace(plan, user_arity=arity), twin, plan.batch(2))
        if base is not None and out is not None and distance(out, base) <= 1e-9 * scale_of(base):
            plan.user_arity = arity
            return


def _counts(plan: Call, twin: Any, side: str) -> bool:
    """Two hidden tokens in the middle are as two at the end, and not as three there."""
    n = plan.batch(2).content(side).shape[1]
    middle, end, more = (
        _hiding(plan, twin, side, first, number)
        for first, number in ((n // 2, 2), (n - 2, 2), (n - 3, 3))
    )
    if middle is None or end is None or more is None:
        return False
    tol = 1e-9 * scale_of(end)
    return distance(middle, end) <= tol < distance(more, end)


def _ignores(plan: Call, twin: Any) -> bool:
    """Whether it gives the same whatever is hidden."""
    a, b = (_hiding(plan, twin, "x", *where) for where in ((0, 0), (1, 2)))
    return a is not None and b is not None and distance(a, b) <= 1e-9 * scale_of(a)


def _hiding(plan: Call, twin: Any, side: str, first: int, number: int) -> Tensor | None:
    batch = plan.batch(2)
    keep = everything(batch.content(side))
    keep[:, first : first + number] = False
    return attempt(plan, twin, batch.hiding(side, keep))
