"""What an encoder-decoder feeds its decoder when it is given labels alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, parameters
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.outputs import read
from allformer.auditor.probe import distance
from allformer.auditor.report import Finding


@check("loss.shift", kinds=("seq2seq",))
def fed(ctx: Context) -> Iterator[Finding]:
    """Given labels alone, the decoder reads label t at position t + 1: shifted right, once."""
    call = ctx.call
    needed = [p.default is p.empty for n, p in parameters(ctx.module).items() if n in call.x_names]
    if not call.labels_name or call.user is not None or any(needed):
        raise NotApplicable("it makes no decoder input from labels")
    if bool(ctx.pattern.triu(1).any()):
        raise NotApplicable("the decoder sees the future: mend that first")
    batch = call.batch(1)
    base = _from_labels(ctx, batch, batch.x)
    other = call.other(batch.x)
    for t in (3, 5):
        labels = batch.x.clone()
        labels[:, t] = other[:, t]
        moved = _from_labels(ctx, batch, labels)
        first = next((i for i in range(base.shape[1]) if ctx.moved(moved[:, i], base[:, i])), None)
        if first is None:
            raise NotApplicable("without decoder inputs the outputs do not depend on the labels")
        if first != t + 1:
            size = distance(moved[:, first], base[:, first])
            what = "not shifted: the answer is an input" if first == t else "shifted wrongly"
            yield Finding(
                "loss.shift",
                "",
                f"given {call.labels_name} and no decoder input, the input that is made of them is "
                f"{what}; changing {call.labels_name}[{t}] first moves the logits at position "
                f"{first}, by {size:.3g}; {t + 1} is right",
            )
            return


def _from_labels(ctx: Context, batch: Batch, labels: Tensor) -> Tensor:
    """The logits when the decoder's input is made from the labels."""
    given = ctx.call.arguments(batch, labels)
    mine = {*ctx.call.x_names, *(s.name for s in ctx.call.slots if s.side == "x")}
    try:
        with torch.no_grad(), ctx.call.manner():
            raw = ctx.loud(**{n: v for n, v in given.items() if n not in mine})
        main = read(raw, labels.shape[0], labels.shape[1], ctx.call.time_first).main
    except Exception as error:
        text = " ".join(str(error).split())[:120]
        raise NotApplicable(f"labels alone: {type(error).__name__}: {text}") from error
    if main.ndim != 3:
        raise NotApplicable("given labels alone, the output has no position axis")
    return main
