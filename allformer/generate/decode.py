"""One token after the other: the likeliest (greedy), or one that is drawn."""

from __future__ import annotations

from torch import Tensor

from allformer.generate.largest import highest
from allformer.generate.request import Generated, Request, first_step
from allformer.generate.stepper import State, Stepper
from allformer.generate.written import Written


def decode(stepper: Stepper, state: State, ids: Tensor, request: Request) -> Generated:
    """Continue each row of `ids` until it is done."""
    written = Written(ids, request)
    rows = written.rows
    logits = first_step(stepper, state, ids, request.copies)  # rows V
    own = not request.keep_logits and ids.device.type == "cpu"  # a graph's stand where they stood
    while True:
        scores = request.process(written.ids, logits, written.whose, own)
        token, rank = _take(scores, rows.here, request)
        written.say(token, rank, logits, scores)
        parting = rows.look()
        if rows.ended:
            return written.finish(rows.steps)
        if parting is not None:
            stay = parting.stay
            written.keep(stay)
            token = token[stay]
            state.keep(stay)
        logits = stepper.step(token[:, None], state)


def _take(scores: Tensor, here: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """A token of each row, and a number that is NaN where the row has one."""
    if request.draw is None:
        rank, token = highest(scores)
        return token, rank
    where, rank = request.draw(scores, here, 1)
    return where[:, 0], rank
