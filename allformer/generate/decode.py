"""One token after the other: the likeliest (greedy), or one that is drawn.

Legend: R rows in all, L tokens so far, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.generate.request import Generated, Kept, Request, check_numbers, first_step
from allformer.generate.stepper import State, Stepper


def decode(stepper: Stepper, state: State, ids: Tensor, request: Request) -> Generated:
    """Continue each row of `ids` until it is done; rows that are done leave the batch.

    Without an end token they stay and go on until all are done, as in transformers.
    """
    device, prompt, copies = ids.device, ids.shape[1], request.copies
    limit = request.limit.repeat_interleave(copies)
    rows, length = len(limit), prompt
    out = ids.new_full((rows, prompt + int(limit.max())), request.pad)  # R L
    out[:, :prompt] = ids.repeat_interleave(copies, dim=0)
    alive = torch.arange(rows)  # which of the R each running row is, on the CPU,
    here = alive.to(device)  # and on the device
    over = torch.zeros(rows, dtype=torch.bool)
    total = torch.zeros(rows, dtype=torch.float64, device=device)
    said = torch.zeros_like(total)
    kept = Kept(request, rows)
    if request.streamer is not None:
        request.streamer.put(out[:, :prompt].cpu())
    logits = first_step(stepper, state, ids, copies)  # R V
    ids = out[:, :prompt]
    while True:
        scores = request.process(
            ids, logits.log_softmax(-1) if request.total else logits, here // copies
        )
        kept.add(logits, scores, here)
        token, rank = _take(scores, here, request)
        if request.total:
            total[here] += rank
            said[here] += 1
        out[here, length] = token
        length += 1
        ids = out[:, :length] if len(alive) == rows else out[here, :length]
        done = request.stop(ids).cpu() | (limit[alive] <= length - prompt)
        check_numbers(rank)
        if request.streamer is not None:
            request.streamer.put(out[:, length - 1].cpu())
        if not request.stop.eos:
            over |= done
            done = over.all().expand(rows)
        if done.all():
            break
        if done.any():
            stay = (~done).nonzero()[:, 0]
            alive, moved = alive[stay], stay.to(device)
            here, ids = here[moved], ids[moved]
            state.select(moved, sources=True)
        logits = stepper.step(ids, state)
    if request.streamer is not None:
        request.streamer.end()
    score = total / said**request.length_penalty if request.total else None
    return kept.put(Generated(out[:, :length], score))


def _take(scores: Tensor, here: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """A token of each row, and a number that is NaN where the row has one."""
    if request.draw is None:
        rank, token = scores.max(-1)
        return token, rank
    where, rank = request.draw(scores, here, 1)
    return where[:, 0], rank
