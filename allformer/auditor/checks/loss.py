"""The loss inside a model: which token each position is trained on, and what is left out.

The target of a position is the id whose logit the gradient pushes up: argmin of ∂loss/∂logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.auditor.calls import Batch, everything
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.losses import counted, loss_gradient
from allformer.auditor.outputs import Out
from allformer.auditor.probe import brief
from allformer.auditor.report import Finding


def _ready(ctx: Context) -> tuple[Batch, Tensor | None]:
    if not ctx.call.x.ids or ctx.call.user is not None:
        raise NotApplicable("it takes no ids, or is called by your function")
    batch = ctx.call.batch(2)
    labels = ctx.call.other(ctx.call.batch(2, seed=9).x, seed=9) if ctx.call.labels_name else None
    return batch, labels


@check("loss.shift", "loss.eos")
def shift(ctx: Context) -> Iterator[Finding]:
    """Position t is trained on the token after t, once."""
    batch, labels = _ready(ctx)
    _out, grad = _gradient(ctx, batch, labels)
    given = batch.x if labels is None else labels
    active = grad.abs().amax(-1) > 1e-12 * (1 + float(grad.abs().max()))
    target = grad.argmin(-1)
    found = _offset(target, active, given)
    if found is None and labels is not None:
        own = _offset(target, active, batch.x)
        if own is not None and torch.equal(_gradient(ctx, batch, batch.x)[1], grad):
            yield Finding(
                "loss.shift",
                f"the loss does not read {ctx.call.labels_name}: whatever they are, the gradient "
                f"at position t points at token t + {own} of the input",
            )
            return
    if found is None and labels is not None and (said := _other_axis(grad, given)):
        yield Finding("loss.shift", said)
        return
    if found is None:
        raise NotApplicable("the targets that the gradient shows are not a shift of the labels")
    unshifted = ctx.call.labels_name in ("labels", "label", "lm_labels", "")
    right = 1 if ctx.kind == "decoder" and unshifted else 0
    if ctx.kind != "decoder" and labels is None:
        raise NotApplicable("it is no language model over its own input")
    if found != right:
        name = ctx.call.labels_name or "the input ids"
        what = {0: "the labels are not shifted", 1: "the labels are shifted once more",
                2: "the labels are shifted twice"}.get(found, f"the labels are shifted by {found}")  # fmt: skip  # noqa: E501
        yield Finding(
            "loss.shift",
            f"{what}: the gradient at position t points at {name}[t + {found}], "
            f"{name}[t + {right}] is right "
            + ("(labels come unshifted)" if right else "(they come already shifted)"),
        )
        return
    last = given.shape[1] - 1 - right
    if not bool(active[:, last].any()) and bool(active[:, 1:last].all()):
        yield Finding(
            "loss.eos",
            f"no row has a gradient at position {last}, whose target is the last label: the end of "
            f"a sentence never counts",
        )


def _gradient(ctx: Context, batch: Batch, labels: Tensor | None) -> tuple[Out, Tensor]:
    try:
        return loss_gradient(ctx, batch, labels)
    except NotApplicable:
        raise
    except Exception as error:
        text = brief(error, 120)
        raise NotApplicable(f"a loss over all positions could not be had: {text}") from error


def _offset(target: Tensor, active: Tensor, labels: Tensor) -> int | None:
    n = labels.shape[1]
    for offset in (0, 1, 2, 3, -1):
        hits = total = 0
        for t in range(n):
            if 0 <= t + offset < n:
                mask = active[:, t]
                hits += int((target[:, t] == labels[:, t + offset])[mask].sum())
                total += int(mask.sum())
        if total and hits / total > 0.9:
            return offset
    return None


def _other_axis(grad: Tensor, labels: Tensor) -> str:
    """Logits and labels that are laid out differently: each is trained on another's label."""
    rows, length, ids = grad.shape
    target = grad.argmin(-1)
    for cut in (0, 1):
        n = length - cut
        logits, wanted = grad[:, :n], labels[:, cut:]
        if float((wanted.T.reshape(rows, n) == target[:, :n]).double().mean()) > 0.9:
            return (
                "the labels are laid out (T, B), the logits (B, T): the gradient of row 0 at "
                "position 1 points at a label of row 1"
            )
        across = logits.reshape(rows, ids, n).argmin(1)
        if float((across == wanted).double().mean()) > 0.9:
            return (
                f"the logits (B, T, {ids}) were reshaped to (B, {ids}, T), where their axes should "
                f"be exchanged: each label pulls at numbers of other positions"
            )
    return ""


@check("loss.padding", "loss.eos")
def left_out(ctx: Context) -> Iterator[Finding]:
    """No gradient where the target is padding; some where it is the end of the sentence."""
    batch, labels = _ready(ctx)
    if labels is None:
        raise NotApplicable("it takes no labels")
    _out, _grad = _gradient(ctx, batch, labels)
    if ctx.call.scalar:
        yield from _one_number(ctx, batch, labels)
        return
    ecosystem = ctx.call.labels_name in ("labels", "label", "lm_labels")
    ignored = _ignores(ctx, batch, labels, -100) or (
        not ecosystem and _ignores(ctx, batch, labels, -1)
    )
    pad = ctx.call.pad
    silent = _silent_ids(ctx, batch, labels)
    if ctx.eos is not None and ctx.eos in silent:
        also = " (it is the padding too)" if ctx.eos == pad else ""
        yield Finding("loss.eos", f"targets of {ctx.eos}, the end{also}, get no gradient at all")
    elif len(silent) > 1:
        yield Finding(
            "loss.eos", f"targets of {len(silent)} ids get no gradient: {sorted(silent)[:6]}"
        )
    if ecosystem and not ignored:
        yield Finding(
            "loss.padding",
            "targets of −100 are not left out: they get a gradient or raise an error",
        )
    elif not ecosystem and pad is not None and pad not in silent and pad != ctx.eos:
        grad_at = _gradient_at(ctx, batch, labels, pad)
        yield Finding(
            "loss.padding",
            f"targets of {pad}, the padding, get a gradient of {grad_at:.3g}, as large as real "
            f"ones",
        )


def _one_number(ctx: Context, batch: Batch, labels: Tensor) -> Iterator[Finding]:
    """One number for each position: labels are no ids, and the mask says what is left out."""
    if not ctx.call.x.keeps:
        raise NotApplicable("the labels are numbers, and it takes no padding mask")
    keep = everything(batch.x)
    keep[:, -2:] = False
    grad = _gradient(ctx, replace(batch, keep=keep), labels)[1].abs().amax(-1)
    if float(grad[~keep].max()) > 0 and not _ignores(ctx, batch, labels, -100):
        yield Finding(
            "loss.padding",
            f"positions of padding get a gradient of {float(grad[~keep].max()):.3g}, real ones of "
            f"up to {float(grad[keep].max()):.3g}, and labels of −100 are not left out",
        )


def _changed(ctx: Context, batch: Batch, labels: Tensor, value: int) -> Tensor | None:
    """The gradient's size for each (row, target place) when two targets are `value`."""
    marked = labels.clone()
    marked[:, 4:6] = value
    try:
        return loss_gradient(ctx, batch, marked)[1].abs().amax(-1)
    except Exception:
        return None


def _ignores(ctx: Context, batch: Batch, labels: Tensor, value: int) -> bool:
    sizes = _changed(ctx, batch, labels, value)
    before = _gradient(ctx, batch, labels)[1].abs().amax(-1)
    if sizes is None or not bool(torch.isfinite(sizes).all()):
        return False
    return int((sizes == 0).sum()) >= int((before == 0).sum()) + 2 * labels.shape[0]


def _gradient_at(ctx: Context, batch: Batch, labels: Tensor, value: int) -> float:
    sizes = _changed(ctx, batch, labels, value)
    return float(sizes[:, 3:6].max()) if sizes is not None else float("nan")


def _silent_ids(ctx: Context, batch: Batch, labels: Tensor) -> set[int]:
    """Ids that are left out as targets, among the special ones and a few others."""
    vocab = ctx.call.x.vocab
    some = {0, 1, 2, 3, vocab - 1, vocab // 2, ctx.call.pad, ctx.eos} - {None}
    return {i for i in some if i is not None and 0 <= i < vocab and _ignores(ctx, batch, labels, i)}


@check("loss.softmax")
def probabilities(ctx: Context) -> Iterator[Finding]:
    """What goes into the loss are logits, not probabilities."""
    if ctx.call.as_log:
        out = ctx.run(ctx.call.batch(2)).exp()
        gap = float((out.sum(-1) - 1).abs().max())
        yield Finding(
            "loss.softmax",
            f"the outputs are probabilities: none is negative and rows of {out.shape[-1]} sum to 1 "
            f"within {gap:.1e}",
        )
        return
    if not ctx.call.labels_name:
        return
    batch, labels = _ready(ctx)
    assert labels is not None
    try:
        with torch.no_grad():
            got = ctx.call(ctx.loud, batch, labels)
    except Exception:
        return
    if got.loss is None or got.main.ndim != 3 or got.main.shape[-1] < int(labels.max()) + 1:
        return
    for offset in (0, 1):
        logits = got.main[:, : labels.shape[1] - offset].flatten(0, 1)
        wanted = labels[:, offset:].flatten()
        right = float(F.cross_entropy(logits, wanted))
        wrong = float(F.cross_entropy(logits.softmax(-1), wanted))
        loss = float(got.loss)
        if abs(loss - wrong) < 1e-4 * wrong and abs(loss - right) > 1e-2 * right:
            yield Finding(
                "loss.softmax",
                f"the loss {loss:.4f} is cross-entropy of softmax(logits); of the logits it is "
                f"{right:.4f}",
            )
            return


__all__ = ["loss_gradient", "replace"]


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
                yield Finding("loss.padding", f"targets of {value} are left out, but {said}")
                return
