"""Words that a masked language model puts into gaps, for the report."""

from __future__ import annotations

from typing import Any

import torch

from allformer.core.loss import IGNORE
from allformer.core.precision import widen
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import moved
from allformer.train.predictions import Prediction, Predictions, calibrated

_AROUND = 12  # tokens shown on either side of a gap


@torch.no_grad()
def filled(model: Any, objective: Any, batch: Any, tokenizer: Tokenizer, count: int) -> Predictions:
    """One row a gap: the text around it, the word that stood there, the likeliest one and how
    likely; over all gaps of the batch, how sure the model is and how often right."""
    here = moved(batch, model.device)
    hidden = objective._hidden(model, here, None).index_select(0, here.places)
    real = (batch.labels != IGNORE).nonzero()[:, 0]
    best = widen(model.vocab_head(hidden)).softmax(-1).max(-1)
    scores, said = best.values.cpu()[real].tolist(), best.indices.cpu()[real].tolist()
    wanted, places = batch.labels[real].tolist(), batch.places[real].tolist()
    right = [a == b for a, b in zip(said, wanted, strict=True)]
    ids, first = batch.ids.flatten().tolist(), set(batch.first.tolist())
    step = max(1, len(places) // count)
    rows = [
        Prediction(
            _around(tokenizer, ids, first, places[i]),
            tokenizer.decode([wanted[i]]).strip(),
            tokenizer.decode([said[i]]).strip(),
            right[i],
            round(scores[i], 4),
        )
        for i in range(0, len(places), step)
    ]
    return Predictions(tuple(rows[:count]), calibration=calibrated(scores, right))


def _around(tokenizer: Tokenizer, ids: list[int], first: set[int], place: int) -> str:
    """The text on both sides within the row; "___" is the gap, other gaps stay as they are."""
    begin, end = place, place + 1
    while begin > max(0, place - _AROUND) and begin not in first:
        begin -= 1
    while end < min(len(ids), place + _AROUND) and end not in first:
        end += 1
    before = tokenizer.decode(ids[begin:place], skip_special_tokens=False)
    after = tokenizer.decode(ids[place + 1 : end], skip_special_tokens=False)
    return f"{before} ___ {after}"
