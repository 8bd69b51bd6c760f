"""A loss by itself: what it trains on, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.auditor.evidence.losses import counted
from allformer.auditor.report import Finding
from allformer.errors import AuditError


def loss(module: Any, state: Any) -> Iterator[Finding]:
    """loss(logits, labels) → a number: its targets are read off the gradient."""
    vocab, pad, eos = 23, state["pad"], state["eos"]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, vocab, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, vocab, (2, 9), generator=generator)

    def gradient(targets: Tensor) -> tuple[Tensor, Tensor]:
        x = logits.clone().requires_grad_(True)
        with torch.enable_grad():
            value = _call_loss(module, x, targets)
            (grad,) = torch.autograd.grad(value, x)
        return value.detach(), grad

    value, grad = gradient(labels)
    active = grad.abs().amax(-1) > 1e-14
    target = grad.argmin(-1)
    offsets = [
        o for o in (0, 1, 2, 3)
        if bool((target[:, : 9 - o] == labels[:, o:])[active[:, : 9 - o]].all())
    ]  # fmt: skip
    if not offsets or offsets[0] > 1:
        found = offsets[0] if offsets else "no fixed number of"
        yield Finding("loss.shift", f"the gradient at t points at labels[t + {found}]")
    else:
        said = "already shifted" if offsets[0] == 0 else "unshifted, as in the ecosystem"
        state["report"].inferred.append(f"labels come {said}")
        last = labels.shape[1] - 1 - offsets[0]
        if not bool(active[:, last].any()) and bool(active[:, :last].all()):
            yield Finding(
                "loss.eos",
                f"no row has a gradient at position {last}, whose target is the last label: the "
                f"end of a sentence never counts",
            )
    wrong = [float(F.cross_entropy(logits.softmax(-1)[:, : 9 - o].flatten(0, 1), labels[:, o:].flatten()))  # noqa: E501
             for o in (0, 1)]  # fmt: skip
    if any(abs(float(value) - w) < 1e-6 for w in wrong):
        yield Finding("loss.softmax", f"the loss {float(value):.4f} is that of softmax(logits)")
    elif float(value) < 0:
        yield Finding(
            "loss.softmax",
            f"the loss is {float(value):.4f}, and −log p is never below 0: is it the mean of −p, a "
            f"nll_loss that gets softmax instead of log_softmax?",
        )
    yield from _ignored(gradient, labels, pad, eos, state)
    yield from _counted(gradient, logits, labels, -100 if pad is None else pad)


def _call_loss(module: Any, logits: Tensor, labels: Tensor) -> Tensor:
    try:
        out = module(logits, labels)
    except Exception:
        out = module(logits.flatten(0, 1), labels.flatten())
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.ndim:
        raise AuditError("the loss returned no single number")
    return out


def _ignored(gradient: Any, labels: Tensor, pad: Any, eos: Any, state: Any) -> Iterator[Finding]:
    def silent(value: int) -> bool:
        marked = labels.clone()
        marked[:, 4:6] = value
        try:
            grad = gradient(marked)[1].abs().amax(-1)
        except Exception:
            return False
        return bool((grad[:, 3:6] == 0).any())

    if pad is None and not silent(-100):
        yield Finding("loss.padding", "targets of −100 get a gradient or raise an error")
    elif pad is not None and not silent(pad):
        yield Finding("loss.padding", f"targets of {pad}, the padding, get a gradient")
    if eos is None:
        state["report"].not_applicable["loss.eos"] = "give eos= to check it"
    elif silent(eos):
        yield Finding("loss.eos", f"targets of {eos}, the end, get no gradient")


def _counted(gradient: Any, logits: Tensor, labels: Tensor, value: int) -> Iterator[Finding]:
    """A mean over the targets that it leaves out."""
    marked = labels.clone()
    marked[:, 4:8] = value
    try:
        (loss, before), (_, after) = gradient(labels), gradient(marked)
    except Exception:
        return  # said above
    said = counted(before, after, float(loss), logits, labels)
    if said:
        yield Finding("loss.padding", f"targets of {value} are left out, but {said}")
