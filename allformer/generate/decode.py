"""One token after the other: the likeliest (greedy), or one that is drawn.

Legend: R rows in all, B of them in the batch, L tokens so far, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.generate.request import Generated, Kept, Request, first_step
from allformer.generate.rows import Rows
from allformer.generate.stepper import State, Stepper


def decode(stepper: Stepper, state: State, ids: Tensor, request: Request) -> Generated:
    """Continue each row of `ids` until it is done; those that are run on, unseen.

    Without an end token they are seen until all are done, as in transformers.
    """
    device, prompt, copies = ids.device, ids.shape[1], request.copies
    rows = request.rows(
        request.limit.repeat_interleave(copies), device, together=not request.stop.eos
    )
    out = ids.new_full((rows.total, prompt + rows.longest), request.pad)  # R L
    out[:, :prompt] = ids.repeat_interleave(copies, dim=0)
    kept = Kept(request, rows)
    if request.streamer is not None:
        request.streamer.put(out[:, :prompt].cpu())
    logits = first_step(stepper, state, ids, copies)  # R V
    ids = out[:, :prompt]
    while True:
        scores = request.process(ids, logits, rows.here // copies)
        kept.add(logits, scores)
        token, rank = _take(scores, rows.here, request)
        length = prompt + rows.steps + 1
        if rows.whole:
            out[:, length - 1] = token
            ids = out[:, :length]
        else:
            out[rows.here, length - 1] = token
            ids = out[rows.here, :length]
        rows.end(request.stop(ids) | rows.at_limit(), rank)
        if request.streamer is not None:
            request.streamer.put(_said(out, rows, prompt, request.pad)[:, -1].cpu())
        parting = rows.look()
        if rows.ended:
            break
        if parting is not None:
            stay = parting.stay
            rows.keep(stay)
            ids, token = ids[stay], token[stay]
            state.keep(stay)
        logits = stepper.step(token[:, None], state)
    if request.streamer is not None:
        request.streamer.end()
    steps = int(rows.count.max())
    if request.draw is not None:
        request.draw.take_back(rows.steps - steps)
    said = _said(out, rows, prompt, request.pad)[:, : prompt + steps]
    return kept.put(Generated(said), steps)


def _said(out: Tensor, rows: Rows, prompt: int, pad: int) -> Tensor:
    """What was said so far, R L: behind the end of a row stands `pad`."""
    columns = torch.arange(prompt + rows.steps, device=out.device)
    over = columns >= prompt + rows.count[:, None]
    return out[:, : len(columns)].masked_fill(over, pad)


def _take(scores: Tensor, here: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """A token of each row, and a number that is NaN where the row has one."""
    if request.draw is None:
        rank, token = scores.max(-1)
        return token, rank
    where, rank = request.draw(scores, here, 1)
    return where[:, 0], rank
