"""A training step by itself: accumulating must not change the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.auditor.probe import duplicate
from allformer.auditor.report import Finding
from allformer.errors import AuditError


class _Tiny(nn.Module):
    """model(ids, labels) → an object with .logits and .loss (the mean over targets ≠ −100)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 11, dtype=torch.float64)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.table(input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return _Output(logits, loss)


class _Output(dict):  # type: ignore[type-arg]
    def __init__(self, logits: Tensor, loss: Tensor | None) -> None:
        super().__init__(logits=logits, loss=loss)
        self.logits, self.loss = logits, loss


def step(module: Any, state: Any) -> Iterator[Finding]:
    """Accumulated over micro-batches of unequal length = the full batch at once.

    A step may have a loss of its own (it shifts the labels): then what it leaves for the full batch
    in one piece is the measure.
    """
    ids = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(1))
    labels[0, 1:], labels[1, 3:] = -100, -100
    pairs = [(ids[i : i + 2], labels[i : i + 2]) for i in (0, 2)]
    torch.manual_seed(0)
    model = _Tiny()
    got, whole = (_left(module, model, micros) for micros in (pairs, [(ids, labels)]))
    with torch.enable_grad():
        (want,) = torch.autograd.grad(model(ids, labels).loss, [model.table.weight])
    if F.cosine_similarity(whole.flatten(), want.flatten(), 0) < 0.999:
        want = whole
    ratio = float((got * want).sum() / (want * want).sum())
    gap = float((got - want).norm() / want.norm())
    if gap > 1e-6:
        yield Finding(
            "loss.accumulation",
            f"two micro-batches with {int((labels[:2] >= 0).sum())} and "
            f"{int((labels[2:] >= 0).sum())} targets give a gradient {ratio:.3g} times that of the "
            f"full batch, {gap:.2g} of it away",
        )


def _left(step: Any, model: nn.Module, micros: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The gradient that a step leaves in a copy of the model."""
    twin = duplicate(model)
    with torch.enable_grad():
        step(twin, micros)
    grad = next(twin.parameters()).grad
    if grad is None:
        raise AuditError("step(model, micro_batches) left no gradient in the model")
    return grad
