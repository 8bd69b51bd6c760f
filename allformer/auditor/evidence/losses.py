"""The gradient of a loss, and whether its mean counts what it leaves out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.auditor.calls import Batch
from allformer.auditor.context import Context, NotApplicable
from allformer.auditor.outputs import Out


def loss_gradient(ctx: Context, batch: Batch, labels: Tensor | None) -> tuple[Out, Tensor]:
    """The output with its loss, and ∂loss/∂logits as B T V."""
    with torch.enable_grad():
        out = ctx.call(ctx.loud, batch, labels)
        if out.loss is None or out.loss.ndim != 0 or not out.loss.requires_grad:
            raise NotApplicable("it returns no loss")
        logits = [t for t in out.tensors if t.numel() == out.main.numel() and t.requires_grad]
        grads = torch.autograd.grad(out.loss, logits, allow_unused=True) if logits else []
    grad = next((g for g in grads if g is not None), None)
    if grad is None:
        raise NotApplicable("the loss is not computed from the logits that are returned")
    if ctx.call.time_first:
        grad = grad.transpose(0, 1)
    return out, grad.reshape(out.main.shape)


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
