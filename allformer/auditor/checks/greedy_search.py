"""Generation: greedy search says what the logits say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.calls import Batch, parameters
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.probe import brief
from allformer.auditor.report import Finding

NEW = 5


@check("search.wrong", kinds=("decoder",))
def greedy(ctx: Context) -> Iterator[Finding]:
    """`generate` with one beam or top_k=1 follows the largest logit at each step."""
    generate = getattr(ctx.loud, "generate", None)
    if ctx.call.silence:
        raise NotApplicable("dropout acts in eval: mend that first")
    if not callable(generate) or not ctx.call.x.ids or ctx.call.slots:
        raise NotApplicable("there is no generate to compare with")
    batch = ctx.call.batch(2, max(3, min(5, ctx.call.length - NEW)))
    want = _by_hand(ctx, batch.x)
    try:
        got = _generated(generate, batch.x)
    except Exception as error:
        text = brief(error, 100)
        raise NotApplicable(f"generate could not be called: {text}") from error
    if not isinstance(got, Tensor) or got.ndim != 2 or got.shape[0] != 2:
        raise NotApplicable("generate does not return ids")
    length = batch.x.shape[1]
    new = got[:, length:] if got.shape[1] > NEW else got
    if torch.equal(got[:, :length], batch.x) and new.shape[1] == NEW and not torch.equal(new, want):
        row, step = (int(i) for i in (new != want).nonzero()[0])
        yield Finding(
            "search.wrong",
            f"greedy generation says {int(new[row, step])} at step {step} of row {row}, the "
            f"largest logit is {int(want[row, step])}",
            "generate",
        )


def _by_hand(ctx: Context, ids: Tensor) -> Tensor:
    for _ in range(NEW):
        logits = ctx.run(Batch(ids))
        if logits.ndim != 3:
            raise NotApplicable("there are no logits for every position")
        ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[:, -NEW:]


def _generated(generate: Any, ids: Tensor) -> Any:
    names = parameters(generate)
    if "input_ids" in names or "generation_config" in names:
        # No end: every id may come, so that both searches run equally long.
        options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
        if "generation_config" in names:
            options |= {"eos_token_id": None, "pad_token_id": 0}
        return generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    if "top_k" in names:
        return generate(ids, NEW, top_k=1)
    raise NotApplicable("generate cannot be made greedy")
