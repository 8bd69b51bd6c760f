"""What an encoder-decoder writes for held-out sources, for the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from allformer.core.layout import Packed
from allformer.core.loss import IGNORE
from allformer.generate.rooms import forget
from allformer.text.tokenizer import Tokenizer
from allformer.train.predictions import Prediction, Predictions

_ROWS = 12  # more would take long, and nobody reads them


@torch.no_grad()
def written(
    model: Any, objective: Any, examples: Any, tokenizer: Tokenizer, count: int
) -> Predictions:
    """Sources from all over the set, what should be said of them, and what the model says."""
    total = len(objective.lengths(examples)[0])
    rows = np.unique(np.linspace(0, total - 1, min(count, _ROWS, total)).astype(int))
    found = []
    for row in rows:  # one by one: no padding, and a tokeniser's own marks stay where they are
        batch = objective.collate(examples, np.array([row]))
        assert not isinstance(batch.source_layout, Packed) or batch.source_layout.rows == 1
        source = batch.source.reshape(1, -1)
        labels = batch.labels[batch.labels != IGNORE]
        said = model.generate(
            source.to(model.device), max_new_tokens=len(labels), num_beams=1, do_sample=False
        )
        read, wanted, given = (
            _text(tokenizer, ids.tolist()) for ids in (source[0], labels, said[0, 1:])
        )
        found.append(Prediction(read, wanted, given, wanted == given))
    forget(model)  # training wants the memory
    return Predictions(tuple(found))


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """With masks and sentinels, which mean something here; without what only begins and ends."""
    names = ("pad", "bos", "eos", "cls", "sep")
    frame = {i for name, i in tokenizer.special_ids.items() if name in names}
    return tokenizer.decode([i for i in ids if i not in frame], skip_special_tokens=False)
