"""An attention that is given several sequences reads each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from allformer.auditor.calls import Call
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.outputs import read
from allformer.auditor.report import Finding


@check("cross.unread", kinds=("attention",))
def each_input(ctx: Context) -> Iterator[Finding]:
    """forward(x, context): other content in one of them moves the output."""
    call = ctx.call
    if call.user is not None or len(call.x.names) < 2:
        raise NotApplicable("there is one sequence")
    batch = call.batch(2)
    other = replace(batch, x=call.other(batch.x))
    base = _run(ctx, call, call.arguments(batch))
    for name in call.x.names:
        mixed = {**call.arguments(batch), name: call.arguments(other)[name]}
        if not ctx.moved(_run(ctx, call, mixed), base):
            yield Finding(
                "cross.unread",
                "",
                f"other vectors in {name!r} move no output: queries, keys and values are all made "
                f"from the other inputs",
            )
            return


def _run(ctx: Context, call: Call, arguments: dict[str, object]) -> torch.Tensor:
    with torch.no_grad():
        raw = ctx.loud(**arguments)
    return read(raw, 2, call.length, call.time_first).main
