"""Call a module in a way that may be wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, Call
from allformer.auditor.probe import brief
from allformer.auditor.watch import Watch


def attempt(plan: Call, twin: Any, batch: Batch) -> Tensor | None:
    """The output, or None (and why, in `tried`)."""
    try:
        with torch.no_grad():
            return plan(twin, batch).main.detach()
    except Exception as error:
        text = f"{type(error).__name__}: {brief(error, 160)}"
        if text not in plan.tried:
            plan.tried.append(text)
        return None


def watched(plan: Call, twin: Any, batch: Batch) -> Watch:
    """What the operators of an attempt did."""
    watch = Watch(twin, batch.inputs)
    with torch.no_grad(), watch:
        attempt(plan, twin, batch)
    return watch
