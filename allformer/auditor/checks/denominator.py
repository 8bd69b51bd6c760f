"""A mean over targets that are left out: their gradient is 0, but they are counted.

When some targets are left out, a mean over the others weighs each of those more; a mean over all
places weighs them as before, so that much padding makes the loss and the step small. A sum does so
too: it is told apart by its size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.auditor.checks.loss import loss_gradient
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.report import Finding


@check("loss.padding")
def denominator(ctx: Context) -> Iterator[Finding]:
    """The gradient at a target grows when others are left out."""
    call = ctx.call
    if not call.x.ids or call.user is not None or not call.labels_name:
        raise NotApplicable("it takes no ids or no labels, or is called by your function")
    batch, labels = call.batch(2), call.other(call.batch(2, seed=9).x, seed=9)
    for value in (-100, call.pad):
        if value is None:
            continue
        marked = labels.clone()
        marked[:, 4:8] = value
        try:
            out, before = loss_gradient(ctx, batch, labels)
            after = loss_gradient(ctx, batch, marked)[1]
        except NotApplicable:
            raise
        except Exception:
            continue
        if before.ndim == 3 and before.shape[:2] == labels.shape:
            assert out.loss is not None
            said = counted(before, after, float(out.loss.detach()), out.main.detach(), labels)
            if said:
                yield Finding("loss.padding", "", f"targets of {value} are left out, but {said}")
                return


def counted(
    before: Tensor, after: Tensor, loss: float, logits: Tensor, labels: Tensor
) -> str | None:
    """Evidence that a mean counts what it leaves out; B T V gradients without and with it."""
    a, b = (g.abs().amax(-1) for g in (before, after))
    gone = (a > 0) & (b == 0)
    both = (a > 0) & (b > 0)
    if int(gone.sum()) < 2 or not bool(both.any()):
        return None
    n = labels.shape[1]
    means = [float(F.cross_entropy(logits[:, : n - o].flatten(0, 1), labels[:, o:].flatten()))
             for o in (0, 1)]  # fmt: skip
    if not any(0.5 * mean < loss < 1.5 * mean for mean in means):
        return None  # a sum, or another kind of loss
    ratio = (b[both] / a[both]).median()
    right = float((a > 0).sum() / (b > 0).sum())
    if not torch.isclose(ratio, torch.ones_like(ratio), rtol=1e-6):
        return None
    return (
        f"the mean still counts them: with {int(gone.sum())} of {int((a > 0).sum())} targets left "
        f"out the gradient at the others is {float(ratio):.3f} times as before, not {right:.3f} "
        f"times"
    )
