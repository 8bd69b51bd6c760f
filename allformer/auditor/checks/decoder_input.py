"""What an encoder-decoder feeds its decoder when it is given labels alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, parameters
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.outputs import read
from allformer.auditor.probe import brief, distance
from allformer.auditor.report import Finding


@check("loss.shift", kinds=("seq2seq",))
def fed(ctx: Context) -> Iterator[Finding]:
    """Given labels alone, the decoder reads label t at position t + 1: shifted right, once."""
    call = ctx.call
    needed = [p.default is p.empty for n, p in parameters(ctx.module).items() if n in call.x.names]
    if not call.labels_name or call.user is not None or any(needed):
        raise NotApplicable("it makes no decoder input from labels")
    if bool(ctx.pattern.triu(1).any()):
        raise NotApplicable("the decoder sees the future: mend that first")
    batch = call.batch(1)
    base = _from_labels(ctx, batch, batch.x)
    other = call.other(batch.x)
    found = {}
    for t in (3, 5):
        labels = batch.x.clone()
        labels[:, t] = other[:, t]
        moved = _from_labels(ctx, batch, labels)
        first = next((i for i in range(base.shape[1]) if ctx.moved(moved[:, i], base[:, i])), None)
        if first is None:
            raise NotApplicable("without decoder inputs the outputs do not depend on the labels")
        found[t] = first, distance(moved[:, first], base[:, first])
    if len({first - t for t, (first, _) in found.items()}) > 1:  # no shift: it sees all of them
        raise NotApplicable("given labels alone, the decoder sees labels before and after")
    t, (first, size) = next(iter(found.items()))
    if first != t + 1:
        what = "not shifted: the answer is an input" if first == t else "shifted wrongly"
        yield Finding(
            "loss.shift",
            f"given {call.labels_name} and no decoder input, the input that is made of them is "
            f"{what}; changing {call.labels_name}[{t}] first moves the logits at position "
            f"{first}, by {size:.3g}; {t + 1} is right",
        )


def _from_labels(ctx: Context, batch: Batch, labels: Tensor) -> Tensor:
    """The logits when the decoder's input is made from the labels.

    The target's masks are given as ever: without them some decoders are not causal.
    """
    given = ctx.call.arguments(batch, labels)
    given = {n: v for n, v in given.items() if n not in ctx.call.x.names}
    masks = {s.name for s in ctx.call.slots if s.side == "x"}
    try:
        try:
            main = _logits(ctx, given, labels)
        except Exception:
            main = _logits(ctx, {n: v for n, v in given.items() if n not in masks}, labels)
    except Exception as error:
        text = brief(error, 120)
        raise NotApplicable(f"labels alone: {type(error).__name__}: {text}") from error
    if main.ndim != 3:
        raise NotApplicable("given labels alone, the output has no position axis")
    return main


def _logits(ctx: Context, given: dict[str, Any], labels: Tensor) -> Tensor:
    with torch.no_grad(), ctx.call.manner():
        raw = ctx.loud(**given)
    return read(raw, labels.shape[0], labels.shape[1], ctx.call.time_first).main
