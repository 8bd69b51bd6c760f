"""When the loss is no longer a number: say which step, which tensors, and what to try."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.taps import listen
from allformer.errors import TrainingError
from allformer.train.batch import Batch, moved
from allformer.train.objectives.objective import Objective


def explain_nonfinite(
    model: Any,
    objective: Objective[Any, Any],
    batch: Batch,
    step: int,
    rate: float,
    dtype: torch.dtype | None,
) -> TrainingError:
    """Run the batch again, listening, and put what was found into words."""
    bad_weights = [n for n, p in model.named_parameters() if not p.isfinite().all()]
    first: list[str] = []

    def look(name: str, x: Tensor) -> None:
        if not first and x.is_floating_point() and not x.isfinite().all():
            largest = x.nan_to_num(0, 0, 0).abs().max().item()
            first.append(f"{name} {tuple(x.shape)}, largest finite value {largest:.3g}")

    model.zero_grad(set_to_none=True)
    with listen(look):
        loss, _ = objective.loss(model, moved(batch, model.device), dtype=dtype)
    torch.autograd.backward(loss.sum())
    bad_gradients = [
        n for n, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
    ]
    model.zero_grad(set_to_none=True)
    lines = [
        f"the loss or its gradient is not finite at step {step} (learning rate {rate:.3g}); "
        f"the weights were left as they were before it"
    ]
    if bad_weights:
        lines.append(f"  weights that are not finite: {_some(bad_weights)}")
    if first:
        lines.append(f"  first value that is not finite: {first[0]}")
    if bad_gradients:
        lines.append(f"  gradients that are not finite: {_some(bad_gradients)}")
    if not (bad_weights or first or bad_gradients):
        lines.append("  the same batch is finite with another dropout: the numbers are at the edge")
    lines.append(
        "  try: a lower optim.rate, a longer schedule.warmup, a smaller optim.clip, "
        "model.norm_at=pre, or train.precision=fp32; then --resume goes on from the last checkpoint"
    )
    return TrainingError("\n".join(lines))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
